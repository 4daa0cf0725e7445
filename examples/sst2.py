"""Fine-tune a text classifier of transformers, then learn it to 40 % of its multiply-adds.

    python examples/sst2.py MODEL DATA OUT [EPOCHS EPOCHS_WITH_GATES]

MODEL is a local folder that `from_pretrained` reads; DATA holds train.txt and dev.txt, a sentence
a line behind its label ("1 a stirring , funny film"). The small model is written into OUT.
"""

import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import archlearn as al
from archlearn.export.pretrained_folder import save_pretrained

if not 4 <= len(sys.argv) <= 6:
    sys.exit(__doc__)
source, data, out, n_before, n_with_gates = (*sys.argv[1:], "3", "15")[:5]
device = "cuda" if torch.cuda.is_available() else "cpu"
tokenizer = AutoTokenizer.from_pretrained(source)


def read(name):
    lines = Path(data, name).read_text().splitlines()
    how = {"padding": "max_length", "truncation": True, "max_length": 64, "return_tensors": "pt"}
    tokens = tokenizer([line[2:] for line in lines], **how).to(device)
    labels = torch.tensor([int(line[0]) for line in lines], device=device)
    return {name: tokens[name] for name in ("input_ids", "attention_mask")}, labels


def train(model, n_epochs, *optimizers):
    for places in (p for _ in range(n_epochs) for p in torch.randperm(len(labels)).split(32)):
        batch = {name: tokens[places] for name, tokens in inputs.items()}
        logits = model.train()(**batch).logits
        loss = cross_entropy(logits, labels[places])
        if model is not net:  # beside the labels, learn from the network before it had gates
            loss = 0.1 * loss + 0.9 * al.distill(logits, net.requires_grad_(False)(**batch).logits)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step(), optimizer.zero_grad()


@torch.no_grad()
def accuracy(model):
    inputs, labels = read("dev.txt")
    return f"{(model.eval()(**inputs).logits.argmax(1) == labels).double().mean():.2%} right"


inputs, labels = read("train.txt")
net = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2).to(device)
train(net, int(n_before), torch.optim.AdamW(net.parameters(), lr=1e-4))
print(f"fine-tuned: {accuracy(net)}")
model = al.add_gates(net, {name: tokens[:2] for name, tokens in inputs.items()})
n_steps = int(n_with_gates) * len(range(0, len(labels), 32))
gates = al.GateOptimizer(model, n_steps, budget={"multiply_adds": "40%"})
train(model, int(n_with_gates), torch.optim.AdamW(al.weights(model), lr=1e-4), gates)
small = al.compact(model)
print(al.count_costs(small), accuracy(small), small.certificate, sep="\n")
print(save_pretrained(small, out, own_file=True))  # BERT's config has one width for all blocks
