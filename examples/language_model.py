"""Train a small Llama on the characters of a text, learn it to half its cost, and let it write.

    python examples/language_model.py TEXT OUT [STEPS STEPS_WITH_GATES]

TEXT is a file of plain text; the last tenth of it is held out. The small model is an ordinary
`LlamaForCausalLM`, which writes with its cache of keys and values. OUT gets a file of archlearn.
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import archlearn as al
from archlearn.export.pretrained_folder import to_transformers

if not 3 <= len(sys.argv) <= 5:
    sys.exit(__doc__)
source, out, n_before, n_with_gates = (*sys.argv[1:], "1000", "1000")[:4]
device = "cuda" if torch.cuda.is_available() else "cpu"
text = Path(source).read_text()
letters = sorted(set(text))
tokens = torch.tensor([letters.index(letter) for letter in text], device=device)
train_tokens, test_tokens = tokens.tensor_split([len(tokens) * 9 // 10])


def draw(tokens, n_rows):
    starts = torch.randint(len(tokens) - 128, (n_rows,)).tolist()
    return torch.stack([tokens[start : start + 128] for start in starts])


def train(model, n_steps, *optimizers):
    for step in range(n_steps):
        batch = draw(train_tokens, 16)
        loss = model.train()(input_ids=batch, labels=batch).loss
        loss.backward()
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()
        if step % 100 == 99:
            print(f"step {step + 1}: {loss.item():.2f} nats a letter")


@torch.no_grad()
def judge(model):
    batch = draw(test_tokens, 64)
    return f"{model.eval()(input_ids=batch, labels=batch).loss.item():.3f} nats a letter held out"


torch.manual_seed(0)
net = LlamaForCausalLM(LlamaConfig(
    vocab_size=len(letters), hidden_size=128, intermediate_size=256, num_hidden_layers=4,
    num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=512,
    bos_token_id=None, eos_token_id=None,
)).to(device)  # fmt: skip
train(net, int(n_before), torch.optim.AdamW(net.parameters(), lr=1e-3))
print(f"before: {judge(net)}")
example = {"input_ids": draw(test_tokens, 2), "labels": draw(test_tokens, 2)}
learn = {"*": al.Learn.WIDTH, "*att*": al.Learn.HEADS}  # which Llama's own forward can hold
model = al.add_gates(net, example, learn=learn)
gates = al.GateOptimizer(model, int(n_with_gates), budget={"multiply_adds": "50%"})
train(model, int(n_with_gates), torch.optim.AdamW(al.weights(model), lr=1e-3), gates)
small = al.compact(model)
print(al.read_architecture(model), small.certificate, sep="\n")
own = to_transformers(small)
print(f"after: {judge(own)}")
written = own.generate(test_tokens[None, :32], max_new_tokens=200, do_sample=True)[0]
print("".join(letters[token] for token in written.tolist()))
al.save(small, Path(out, "small.safetensors"))
net.config.save_pretrained(out)  # to_transformers(al.load(file), original=OUT) reads both
