"""Times ResNet50 (batch 64) and BERT-base (batch 32, 128 tokens) on an NVIDIA GPU, here and in PyTorch.

Usage: python bench/gpu.py DIR [--ferroflow PATH] [--no-torch]
       python bench/gpu.py train DIR [--ferroflow PATH] [--no-torch]

DIR has ResNet50.pb and bert_base.pb of `bench/zoo.py`, or resnet50_train.pb and bert_train.pb of `bench/gpu_train.py`;
torch, torchvision and transformers are those of the machine. Inputs of ResNet50 travel to the GPU in each of Ferroflow's
steps; PyTorch has its own on the GPU before. A step of training is forward pass, gradients and update: momentum for
ResNet50, Adam for BERT.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

MODELS = [("ResNet50", "Identity:0"), ("bert_base", "Identity:0")]
OPTIONS = [("TF32", []), ("bfloat16", ["--precision", "bf16"])]


def feeds(name):
    rng = np.random.default_rng(1)
    if name == "ResNet50":
        return {"x:0": rng.normal(size=(64, 224, 224, 3)).astype(np.float32)}
    mask = np.arange(128) < rng.integers(64, 129, (32, 1))
    return {
        "input_ids:0": (rng.integers(0, 30522, (32, 128)) * mask).astype(np.int32),
        "token_type_ids:0": np.zeros((32, 128), np.int32),
        "attention_mask:0": mask.astype(np.int32),
    }


def ours(ferroflow, folder):
    for name, fetch in MODELS:
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            np.savez(file, **feeds(name))
            file.flush()
            for label, options in OPTIONS:
                for capture in [[], ["--no-capture"]]:
                    command = [ferroflow, "bench", f"{folder}/{name}.pb", "--feeds", file.name, "--fetch", fetch,
                               "--devices", "GPU:1", "--json", *options, *capture]
                    result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                    how = "launches" if capture else "CUDA graph"
                    yield name, label, f"Ferroflow, {how}", result["median_s"]


def training_feeds(name):
    rng = np.random.default_rng(1)
    if name == "resnet50_train":
        x, classes = rng.normal(size=(64, 224, 224, 3)).astype(np.float32), 1000
    else:
        x, classes = rng.integers(0, 30522, (32, 128)).astype(np.int32), 2
    return {"x:0": x, "y:0": rng.integers(0, classes, len(x)).astype(np.int32)}


def ours_training(ferroflow, folder):
    for name in ["resnet50_train", "bert_train"]:
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            np.savez(file, **training_feeds(name))
            file.flush()
            for label, options in OPTIONS:
                command = [ferroflow, "bench", f"{folder}/{name}.pb", "--feeds", file.name, "--fetch", "loss:0",
                           "--init", "init", "--target", "train", "--devices", "GPU:1", "--json", *options]
                result = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
                yield name, label, "Ferroflow", result["median_s"]


def theirs_training():
    import torch
    import torchvision
    import transformers

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    for name in ["resnet50_train", "bert_train"]:
        x, y = (torch.tensor(v).cuda() for v in training_feeds(name).values())
        y = y.long()
        if name == "resnet50_train":
            x = x.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        else:
            x = x.long()
        for label, dtype in [("TF32", None), ("bfloat16", torch.bfloat16)]:
            for how in ["eager", "compile"]:
                if name == "resnet50_train":
                    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
                    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
                else:
                    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
                    model = transformers.BertForSequenceClassification(config).cuda()
                    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
                forward = model if how == "eager" else torch.compile(model)

                def step():
                    optimizer.zero_grad(set_to_none=True)
                    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
                        out = forward(x)
                        logits = getattr(out, "logits", out)
                        loss = torch.nn.functional.cross_entropy(logits.float(), y)
                    loss.backward()
                    optimizer.step()

                yield name, label, f"PyTorch, {how}", median(step)
                torch._dynamo.reset()


def median(call, rounds=30):
    import torch

    for _ in range(5):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[rounds // 2]


def theirs():
    import torch
    import torchvision
    import transformers

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    images = torch.randn(64, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    resnet = torchvision.models.resnet50().eval().cuda().to(memory_format=torch.channels_last)
    bert = transformers.BertModel(transformers.BertConfig()).eval().cuda()
    ids, _, mask = (torch.tensor(v).long().cuda() for v in feeds("bert_base").values())
    for name, model, inputs in [("ResNet50", resnet, [images]), ("bert_base", bert, [ids, mask])]:
        for label, dtype in [("TF32", torch.float32), ("bfloat16", torch.bfloat16)]:
            model = model.to(dtype)
            given = [i.to(dtype) if i.is_floating_point() else i for i in inputs]
            for how, mode in [("eager", None), ("compile", "default"), ("compile, CUDA graph", "reduce-overhead")]:
                with torch.inference_mode():
                    run = model if mode is None else torch.compile(model, mode=mode)
                    yield name, label, f"PyTorch, {how}", median(lambda: run(*given))
                torch._dynamo.reset()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["train"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ferroflow", default="target/release/ferroflow")
    parser.add_argument("--no-torch", action="store_true")
    options = parser.parse_args()
    print(subprocess.run([options.ferroflow, "devices"], capture_output=True, text=True).stdout)
    print("| network | products | engine | ms |\n|---|---|---|--:|")
    runs = (ours_training, theirs_training) if options.what == "train" else (ours, theirs)
    rows = list(runs[0](options.ferroflow, options.folder))
    if not options.no_torch:
        rows += runs[1]()
    for name, label, engine, seconds in sorted(rows, key=lambda r: r[:2]):
        print(f"| {name} | {label} | {engine} | {seconds * 1e3:.2f} |")


if __name__ == "__main__":
    main()
