// A second device for torch whose memory is the CPU's: what mixes its tensors with those of the CPU
// fails as on a GPU, which the CPU alone cannot show. Every operation is the CPU's own.
#include <torch/extension.h>
#include <torch/library.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/Allocator.h>
#include <ATen/ops/_copy_from_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>

namespace {
const c10::Device DEV(c10::DeviceType::PrivateUse1, 0);

void free_it(void* p) { c10::free_cpu(p); }
struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* p = c10::alloc_cpu(n);
    return {p, p, &free_it, DEV};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_it; }
  void copy_data(void* d, const void* s, std::size_t n) const override { std::memcpy(d, s, n); }
};
HostAllocator alloc_;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &alloc_);

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::PrivateUse1; }
  c10::Device exchangeDevice(c10::Device) const override { return DEV; }
  c10::Device getDevice() const override { return DEV; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, DEV); }
  c10::Stream getDefaultStream(c10::Device) const override { return c10::Stream(c10::Stream::DEFAULT, DEV); }
  c10::Stream exchangeStream(c10::Stream) const override { return c10::Stream(c10::Stream::DEFAULT, DEV); }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
struct RegHooks { RegHooks() { at::RegisterPrivateUse1HooksInterface(new Hooks()); } } reg_;

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> mf) {
  return at::detail::empty_generic(size, &alloc_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype), mf);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &alloc_, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::dtype_or_default(dtype));
}
at::Tensor cpu_view(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  auto bytes = x.storage().nbytes();
  auto base = at::from_blob(x.storage().mutable_data(), {(int64_t)(bytes / x.element_size())}, at::TensorOptions().dtype(x.scalar_type()));
  auto out = base.as_strided(x.sizes(), x.strides(), x.storage_offset());
  if (x.is_conj()) out = out.conj();
  if (x.is_neg()) out = out._neg_view();
  return out;
}
at::Tensor copy_from_(const at::Tensor& self, const at::Tensor& dst, bool) {
  at::AutoDispatchBelowADInplaceOrView g;
  cpu_view(dst).copy_(cpu_view(self));
  return dst;
}
at::Tensor copy_from_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from_(self, dst, false);
}
const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> mf) {
  return at::native::resize_(self, C10_AS_INTARRAYREF_SLOW(size), mf);
}
at::Tensor as_strided(const at::Tensor& s, c10::IntArrayRef a, c10::IntArrayRef b, std::optional<int64_t> o) { return at::native::as_strided_tensorimpl(s, a, b, o); }
at::Tensor view(const at::Tensor& s, c10::IntArrayRef a) { return at::native::view(s, a); }
at::Tensor unfold(const at::Tensor& s, int64_t d, int64_t n, int64_t st) { return at::native::unfold(s, d, n, st); }
at::Tensor reshape_alias(const at::Tensor& s, c10::IntArrayRef a, c10::IntArrayRef b) { return at::native::_reshape_alias(s, a, b); }
at::Tensor& set_source(at::Tensor& self, at::Storage src, int64_t off, c10::IntArrayRef size, c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(src);
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, off);
  return self;
}
at::Tensor& set_storage(at::Tensor& self, at::Storage src) {
  int64_t n = src.nbytes() / self.element_size();
  return set_source(self, src, 0, {n}, {1});
}
at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& o) { return set_source(self, o.storage(), o.storage_offset(), o.sizes(), o.strides()); }
at::Tensor& set_none(at::Tensor& self) { auto e = at::empty({0}, self.options()); return set_tensor(self, e); }

at::Tensor to_dev(const at::Tensor& c) { return c.defined() ? c.to(DEV) : c; }
at::Tensor conv(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b, c10::IntArrayRef st, c10::IntArrayRef p, c10::IntArrayRef d, bool t, c10::IntArrayRef op, int64_t g) {
  TORCH_CHECK(!x.is_cpu() && !w.is_cpu(), "Input type and weight type should be the same (pretended GPU)");
  std::optional<at::Tensor> bb; if (b && b->defined()) { TORCH_CHECK(!b->is_cpu(), "bias on cpu (pretended GPU)"); bb = cpu_view(*b); }
  return to_dev(at::convolution(cpu_view(x), cpu_view(w), bb, st, p, d, t, op, g));
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> conv_back(const at::Tensor& go, const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef st, c10::IntArrayRef p, c10::IntArrayRef d, bool t, c10::IntArrayRef op, int64_t g, std::array<bool, 3> m) {
  auto r = at::convolution_backward(cpu_view(go), cpu_view(x), cpu_view(w), at::IntArrayRef({w.size(t ? 1 : 0) * (t ? g : 1)}), st, p, d, t, op, g, m);
  return {to_dev(std::get<0>(r)), to_dev(std::get<1>(r)), to_dev(std::get<2>(r))};
}
int64_t sdp_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool, std::optional<double>, bool) { return 0; }

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  auto name = schema.name();
  bool index = name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_" || name == "aten::index_put" || name == "aten::_unsafe_index" || name == "aten::_unsafe_index_put";
  auto args = torch::jit::last(stack, schema.arguments().size());
  size_t n_here = 0; std::vector<std::pair<size_t, at::Tensor>> cpu; bool self_here = false;
  auto see = [&](size_t i, const at::Tensor& t) {
    if (!t.defined()) return;
    if (t.device().type() == c10::DeviceType::PrivateUse1) { n_here++; if (i == 0) self_here = true; }
    else if (t.is_cpu() && t.dim() > 0) cpu.emplace_back(i, t);
  };
  for (size_t i = 0; i < args.size(); i++) {
    if (args[i].isTensor()) see(i, args[i].toTensor());
    else if (args[i].isTensorList()) for (const auto& t : args[i].toTensorVector()) see(i, t);
    else if (args[i].isOptionalTensorList()) for (const auto& t : args[i].toOptionalTensorList()) { std::optional<at::Tensor> o = t; if (o) see(i, *o); }
  }
  bool ok = true;
  for (auto& c : cpu) if (!(index && self_here && c.first == 1)) ok = false;
  TORCH_CHECK(!n_here || ok, "pretended GPU: ", name, ".", schema.overload_name(), ": expected all tensors on the same device, found gpu and cpu",
     index ? " (indices should be either on cpu or on the same device as the indexed tensor)" : "");
  at::native::cpu_fallback(op, stack, true);
}
}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from_));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_resize));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(view));
  m.impl("unfold", TORCH_FN(unfold));
  m.impl("_reshape_alias", TORCH_FN(reshape_alias));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source));
  m.impl("set_.source_Storage", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("set_", TORCH_FN(set_none));
  m.impl("convolution_overrideable", TORCH_FN(conv));
  m.impl("convolution_backward_overrideable", TORCH_FN(conv_back));
  m.impl("_fused_sdp_choice", TORCH_FN(sdp_choice));
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}
