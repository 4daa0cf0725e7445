#!/bin/sh
# Build the wheel and install it with each extra into an empty environment: sh benchmarks/try_extras.sh [PYTHON]
# With torch alone the README's first example runs; with the others, what they are for is imported or tried.
# What is installed already is kept by constraints.txt, so no extra can replace torch.
set -eu
python=${1:-python3}
home=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_CONSTRAINT="$home/constraints.txt" PIP_DISABLE_PIP_VERSION_CHECK=1
"$python" -m venv "$work/env"
env="$work/env/bin"
"$env/pip" install --quiet build hatchling
(cd "$home" && "$env/python" -m build --wheel --no-isolation --outdir "$work" . >/dev/null)
wheel=$(ls "$work"/*.whl)
"$python" -m venv --clear "$work/env"
"$env/pip" install --quiet torch==2.13.0
cd "$work"
try() {
    "$env/pip" install --quiet "$wheel$1"
    "$env/python" -c "$2"
    echo "archlearn$1: installed, and runs: $2"
}
try "" "import archlearn as al; al.add_gates; al.GateOptimizer; al.compact; al.load"
awk '/^```python/ {on = 1; next} /^```/ {if (on) exit} on' "$home/README.md" >readme.py
"$env/python" readme.py >/dev/null
echo "archlearn: the README's example runs with nothing but torch and what archlearn needs"
try '[cli]' "import archlearn_cli.training, archlearn_cli.reporting, archlearn_cli"
"$env/archlearn" --help >/dev/null
try '[tensorboard]' "import tensorboard, archlearn_cli.training"
try '[lightning]' "import archlearn.integrations.lightning"
try '[transformers]' "import archlearn.integrations.trainer_callback, accelerate"
try '[export]' "import archlearn.export.programs, onnx, onnxruntime, onnxscript"
try '[wandb]' "import wandb, archlearn_cli.training"
WANDB_MODE=offline "$env/archlearn" learn --model mlp:24-16 --data digits --epochs 1 --logger wandb --out w >/dev/null
ls w/wandb
