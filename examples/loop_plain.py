"""Fine-tune a language model with a PyTorch loop: MODEL DATA.jsonl OUTPUT."""

import sys
from itertools import cycle, islice

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup

name, data, output = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name)
dataset = load_dataset("json", data_files=data, split="train")

optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=0, num_training_steps=20)
for text in islice(cycle(dataset["text"]), 20):
    tokens = tokenizer(text, return_tensors="pt")
    model(**tokens, labels=tokens["input_ids"]).loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
model.save_pretrained(output)
tokenizer.save_pretrained(output)
