"""Fine-tune a language model with a private PyTorch loop: MODEL DATA.jsonl OUTPUT."""

import sys
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup

from userdp import Plan, make_private, prepare

name, data, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
dataset = load_dataset("json", data_files=data, split="train")

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=20)
store = prepare(dataset, out="people", user="author", tokenizer=name)
steps = make_private(model, optimizer, store, Plan.load(Path("plan.json")), out=output)
for _ in steps:
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
steps.save()
tokenizer.save_pretrained(output)
