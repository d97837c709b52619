#!/bin/bash
# Races the volvelle program against the peers that are installed, on one checkpoint, in one run.
#
#   tests/bench/race.sh CHECKPOINT.gguf [--volvelle build/volvelle] [--threads 1,2] [--depths 0,4096]
#                       [--rounds 5] [--folder HF_FOLDER] [--python VENV/bin/python] [-o FOLDER]
#
# Peers: `llama-bench` with `llama-quantize` on PATH; ctranslate2 as a package of --python, which
# converts the Hugging Face folder of the same checkpoint. Whatever is missing is named and left out.
# Writes race.md and race.svg to the -o folder (default: here).
exec python3 "$(dirname "${BASH_SOURCE[0]}")/race.py" "$@"
