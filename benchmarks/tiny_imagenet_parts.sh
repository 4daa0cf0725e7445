#!/bin/sh
# Tiny-ImageNet-200 in parts that fit a small parcel, for machines that get their files that way.
#
#   benchmarks/tiny_imagenet_parts.sh split FOLDER_WITH_ARCHIVES carried     writes carried/tiny-{0,1,2}/part
#   benchmarks/tiny_imagenet_parts.sh join FOLDER_WITH_PARTS TARGET          unpacks tiny-imagenet-200 into TARGET
#
# The archives (train-0..3.tar.gz, val.tar.gz) are put one behind the other and cut in three; their
# bytes stay as they are, so that what is unpacked is what was packed.
set -eu
case "$1" in
split)
  size=$(cat "$2"/train-?.tar.gz "$2"/val.tar.gz | wc -c)
  each=$(( (size + 2) / 3 ))
  for n in 0 1 2; do
    mkdir -p "$3/tiny-$n"
    cat "$2"/train-?.tar.gz "$2"/val.tar.gz | tail -c +$(( n * each + 1 )) | head -c "$each" >"$3/tiny-$n/part" || true
  done
  wc -c "$3"/tiny-?/part
  ;;
join)
  mkdir -p "$3"
  cat "$2"/tiny-0/part "$2"/tiny-1/part "$2"/tiny-2/part | tar xz --ignore-zeros -C "$3"
  find "$3/tiny-imagenet-200" -name '*.JPEG' | wc -l
  ;;
*)
  echo "usage: $0 split|join FROM TO" >&2
  exit 2
  ;;
esac
