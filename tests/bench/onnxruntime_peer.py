"""onnxruntime in the race: times a folder that onnxruntime's model builder has written.

    onnxruntime_peer.py FOLDER --threads N --context TOKENS --prefill TOKENS --decode TOKENS --depths 0,4096

The cache starts empty, so a time at a depth writes that many tokens first. Needs onnxruntime-genai.
"""

import argparse
import json
import time
from importlib.metadata import version


def clock(options):
    import numpy
    import onnxruntime_genai
    config = onnxruntime_genai.Config(options.folder)
    config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": options.threads}}}}))
    model = onnxruntime_genai.Model(config)
    parameters = onnxruntime_genai.GeneratorParams(model)
    parameters.set_search_options(max_length=options.context, min_length=options.context, do_sample=False,
                                  past_present_share_buffer=True)
    generator = onnxruntime_genai.Generator(model, parameters)
    filled = 0

    def feed(tokens):
        nonlocal filled
        generator.append_tokens(numpy.array([[100 + (filled + i) % 5000 for i in range(tokens)]], numpy.int32))
        filled += tokens

    def rewind(tokens):
        nonlocal filled
        generator.rewind_to(tokens)
        filled = tokens

    def seconds(tokens, times=1):
        start = time.monotonic()
        for _ in range(times):
            feed(tokens)
        return time.monotonic() - start

    feed(options.prefill)
    feed(1)
    rewind(0)
    figures = []
    for depth in sorted(options.depths):
        while filled < depth:
            feed(min(options.prefill, depth - filled))
        prefill = options.prefill / seconds(options.prefill)
        rewind(depth)
        if depth == 0:
            feed(1)  # a generator that was rewound to nothing starts with a prompt
        decode = options.decode / seconds(1, options.decode)
        rewind(depth)
        figures += [["prefill", depth, prefill], ["decode", depth, decode]]
    print(json.dumps({"version": f"onnxruntime {version('onnxruntime')} (genai {version('onnxruntime-genai')})",
                      "figures": figures}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    for name in ("--threads", "--context", "--prefill", "--decode"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--depths", type=lambda text: [int(part) for part in text.split(",")], required=True)
    clock(parser.parse_args())


if __name__ == "__main__":
    main()
