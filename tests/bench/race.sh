#!/bin/bash
# Races the volvelle program against the peers that are installed, on one checkpoint, in one run.
#
#   tests/bench/race.sh CHECKPOINT.gguf|--shape llama-1b|--shape mpt-300m
#                       [--volvelle build/volvelle] [--threads 1,2] [--depths 0,4096]
#                       [--rounds 5] [--folder HF_FOLDER]
#                       [--python VENV/bin/python] [--work FOLDER] [-o FOLDER]
#
# Peers: `llama-bench` with `llama-quantize` on PATH; ctranslate2, executorch and onnxruntime-genai
# as packages of --python, which convert the Hugging Face folder of the same checkpoint. Whatever is
# missing, or cannot run such a model, is named and left out. --shape writes a model of that shape
# with random weights in both forms, with the numpy, safetensors and gguf of --python. One venv can
# have them all: torch executorch onnxruntime-genai onnxruntime onnx-ir ctranslate2 transformers gguf.
#
# What the peers need is made once in --work (ExecuTorch takes a quarter of an hour) and found there
# by the next race. Writes race.md and race.svg to the -o folder (default: here).
exec python3 "$(dirname "${BASH_SOURCE[0]}")/race.py" "$@"
