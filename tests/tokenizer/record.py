#!/usr/bin/env python3
"""Records the tokenizers of encoders and translators beside this file in `data/`.

Trains small ones with Hugging Face tokenizers 0.23 and sentencepiece 0.2 and writes, for awkward
texts, what those (for Marian: transformers 5.24) make of them. Texts come from the sentences below
and from seeds; what training makes of them may differ from run to run, and is recorded with them.

  record.py [DATA]
"""

import base64
import io
import json
import os
import pathlib
import random
import sys

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

SENTENCES = """
The quick brown fox jumps over the lazy dog, doesn't it? I'm sure they've seen it.
A volvelle is a paper computer: stacked dials are turned against each other to read off an answer.
Positions are computed once, offline, and the tables are stored with the model.
Über sieben Brücken mußt du gehn; Straße, Größe, Äpfel und Öl. Der Übermut tut selten gut.
L'été dernier, j'ai mangé une crème brûlée à la façon de grand-mère; où est le garçon?
¿Qué tal? El niño soñó con un pingüino. Mañana será otro día, señor.
Съешь же ещё этих мягких французских булок, да выпей чаю. Привет, мир!
Ο γρήγορος αλεπού πηδάει πάνω από το σκυλί. Καλημέρα κόσμε!
日本語の文章です。こんにちは、世界。東京は日本の首都である。
我喜欢学习语言。今天天气很好，我们去公园吧。
안녕하세요 세계. 한국어 문장입니다.
שלום עולם. זהו משפט בעברית. مرحبا بالعالم. هذه جملة بالعربية.
नमस्ते दुनिया। यह हिन्दी का वाक्य है। สวัสดีชาวโลก นี่คือประโยคภาษาไทย
Prices: $12.50, €9,99, 100% of 3/4 cups; e-mail me@example.org or see https://example.org/a?b=c.
x = [i**2 for i in range(10) if i % 2 == 0]  # squares {of} even <numbers>
unbelievable unhappiness internationalization tokenization tokenizers tokenized reading reads reader
""".strip().split("\n")

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", "    \t\n\r\u00a0\u3000",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "äöüßéèêñçøåœæÄÖÜÉÑÇİıǅŉſ", "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    "αβγδεζηθικλμνξοπρσςτυφχψω", "日本語文章東京都我喜欢学习㐀豈𠀀𪜀𫠠龦", "あいうえおカキクケコﾊﾝｶｸ", "안녕하세요세계한국어가각",
    "שלוםעולםמרחבابالعالم", "नमस्तेदुनियाहिन्दी", "สวัสดีชาวโลก", "\u0300\u0301\u0308\u0327\u0316\u0345\u05b0\u0651\u20dd\u1dc0",
    "\u200b\u200c\u200d\u200e\u2060\ufeff\ufffd\u00ad\u061c\u2028\u2029\u0085", "\x00\x01\x07\x08\x0b\x0c\x1b\x1f\x7f\x80\x9f",
    "ﬁﬂﬀⅣ①㎏℃ＡＢａ１！", "😀👍🏽👩‍👩‍👧🇳🇴❤️☃", "\u0378\u0890\u08e2\U00013430\U000110cd\U0001e944\ue000\U0010ffff",
    "\u2581\u2581_▂", "«»“”‘’…—–·¿¡§¶†‡•‰′″※᙭𑇉؝𐽕", "\u1734\U0001171e\u1cf2\u0897\u1ac1\U00010d24",
]

FIXED = [
    "", " ", "  ", "\n", "\t \r\n", "a", "A", " a", "a ", "  a  b  ", "Hello, World!", "don't do not 's 've 're n't 'm",
    "[CLS] text [SEP] [MASK] [UNK] [PAD]", "<s> text </s> <mask> <unk> <pad>", "<0x41><0x0A> <0xE2>", "##ing ## #",
    "▁", "▁▁", " ▁ ", "a▁b", "▁a", "a ▁", "``quoted''", "x" * 99, "x" * 100, "x" * 101, "ab" * 300, "é" * 60,
    "e\u0301" * 50, "1234567890" * 12, "日本語" * 30, "the " * 40, "supercalifragilisticexpialidocious",
    "naïve café Ångström ÅNGSTRÖM İstanbul ısı ǅ ŉ ſ", "e\u0301 e\u0323\u0301 \u0301a", "ﬁ\u0301 ﬁ ﬁ\u200d", "A\u0308\u0304 o\u0302\u0323",
    "가 각 \u1100\u1161 \u1100\u1161\u11a8", "\r\n\r\n", "a\u0000b", "\u0085next", "👩\u200d👩\u200d👧\u200d👦 🇳🇴🇩🇪 👍🏽",
    ">>deu<< Hello", ">>fra<<", " >>deu<< x", ">>xyz<< Hello", "x >>deu<< y", ">>deu no end", ">><<", "Hello</s>World",
    "Hello </s> World <pad>", "deu_Latn eng_Latn text", "１２３ ＡＢＣ ㎏ ℃ ① Ⅳ ㍿", "\u3000全角　空白\u3000", "tab\tand\nline",
]

BROKEN = [b"\xff", b"a\x80b", b"\xc3", b"caf\xc3", b"\xe6\x97", b"\xed\xa0\x80 x", b"\xf0\x9f\x98", b"\xc0\xaf/", b"ok \xf4\x90\x80\x80 ok"]


def texts(seed, count=160):
    rng = random.Random(seed)
    words = " ".join(SENTENCES).split()
    made = list(FIXED) + SENTENCES
    for i in range(count):
        parts = []
        for _ in range(rng.randint(1, 8)):
            if rng.random() < 0.45:
                parts.append(rng.choice(words))
            else:
                letters = rng.choice(ALPHABETS) if rng.random() < 0.7 else rng.choice(ALPHABETS) + rng.choice(ALPHABETS)
                parts.append("".join(rng.choice(letters) for _ in range(rng.randint(1, 9))))
        made.append((rng.choice(["", " ", " ", "  "])).join(parts))
    return made


def rows(encode, decode, seed, count=160):
    """encode(text, special) gives ids; decode(ids, skip) text, or is None."""
    for number, text in enumerate(texts(seed, count)):
        yield describe(f"t{number}", {"text": text}, text, encode, decode)
    for number, raw in enumerate(BROKEN):
        text = raw.decode("utf-8", "replace")  # one U+FFFD for each maximal part
        yield describe(f"b{number}", {"base64": base64.b64encode(raw).decode()}, text, encode, None)


def describe(name, given, text, encode, decode):
    row = {"id": name, **given, "ids": encode(text, False)}
    special = encode(text, True)
    if special != row["ids"]:
        row["ids_special"] = special
    if decode is not None:
        row["decode"] = decode(row["ids"], False)
        skipped = decode(row["ids"], True)
        if skipped != row["decode"]:
            row["decode_skip"] = skipped
    return row


def write_rows(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=True, separators=(",", ":")) + "\n")


def pair_rows(tokenizer, seed):
    rng = random.Random(seed)
    pool = [t for t in texts(seed, 40) if len(t) < 200]
    for number in range(60):
        first, second = rng.choice(pool), rng.choice(pool)
        limit = rng.choice([None, None, 4, 5, 7, 8, 9, 16, 33])
        tokenizer.no_truncation()
        whole = tokenizer.encode(first, second)
        if limit is not None:
            tokenizer.enable_truncation(limit, strategy="longest_first")
        cut = tokenizer.encode(first, second)
        row = {"id": f"p{number}", "text": first, "pair": second, "ids": cut.ids, "types": cut.type_ids}
        if limit is not None:
            row["limit"] = limit
        if len(cut.ids) < len(whole.ids):
            row["cut"] = len(whole.ids) - len(cut.ids)
        yield row
    for number, limit in enumerate([2, 3, 4, 9, 1000]):
        first = SENTENCES[number]
        tokenizer.no_truncation()
        whole = tokenizer.encode(first)
        tokenizer.enable_truncation(limit)
        cut = tokenizer.encode(first)
        row = {"id": f"s{number}", "text": first, "limit": limit, "ids": cut.ids, "types": cut.type_ids}
        if len(cut.ids) < len(whole.ids):
            row["cut"] = len(whole.ids) - len(cut.ids)
        yield row
    tokenizer.no_truncation()


# Marks of Unicode 11 and later. Normal forms sort marks, and the reference's tables do not know these.
NEW_MARKS = "\u0897\u1ac1\U00010d24"


def save(folder, tokenizer, seed, without=""):
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.no_truncation()
    tokenizer.save(str(folder / "tokenizer.json"))
    encode = lambda text, special: tokenizer.encode(text, add_special_tokens=special).ids
    decode = lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip)
    kept = (row for row in rows(encode, decode, seed) if not any(c in row.get("text", "") for c in without))
    write_rows(folder / "vectors.jsonl", kept)
    write_rows(folder / "pairs.jsonl", pair_rows(tokenizer, seed + 1000))


BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def wordpiece(normalizer, pre_tokenizer, decoder, size=420, prefix="##", longest=100):
    tokenizer = Tokenizer(models.WordPiece({}, unk_token="[UNK]", max_input_chars_per_word=longest,
                                           continuing_subword_prefix=prefix))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=BERT_SPECIAL, show_progress=False, continuing_subword_prefix=prefix))
    return tokenizer


def unigram(normalizer, pre_tokenizer, decoder, special, size=420, byte_fallback=False, unknown="<unk>"):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(SENTENCES, trainers.UnigramTrainer(
        vocab_size=size, special_tokens=special, unk_token=unknown, show_progress=False, max_piece_length=12))
    state = json.loads(tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    if byte_fallback:
        vocabulary += [[f"<0x{byte:02X}>", 0.0] for byte in range(256)]
        state["model"]["byte_fallback"] = True
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoder
    return tokenizer


RULES = [("ﬁ", "fi"), ("ﬂ", "fl"), ("ﬀ", "ff"), ("Ⅳ", "IV"), ("①", "1"), ("㎏", "kg"), ("℃", "°C"), ("\u3000", " "),
         ("\u00a0", " "), ("\t", " "), ("\n", " "), ("\r", " "), ("\u200b", " "), ("\ufeff", ""), ("\u00ad", ""),
         ("e\u0301", "é"), ("E\u0301", "É"), ("a\u0308", "ä"), ("A\u0308", "Ä"), ("A\u0308\u0304", "Ǟ"), ("o\u0302\u0323", "ộ"),
         ("\u1100\u1161", "가"), ("\u1100\u1161\u11a8", "각"), ("\u2028", " "), ("\u2029", " "), ("㍿", "株式会社"), ("…", "..."),
         ("\x01", ""), ("\x07", ""), ("ﾊ", "ハ"), ("ﾝ", "ン")] + [(chr(0xFF01 + i), chr(0x21 + i)) for i in range(94)]


def sentencepiece_model(path, rules=None, **options):
    """A model of one thread, with a map of characters from RULES."""
    arguments = dict(sentence_iterator=iter(SENTENCES), vocab_size=420, num_threads=1, hard_vocab_limit=False,
                     character_coverage=0.98, minloglevel=2)
    if rules is not None:
        table = path.with_suffix(".tsv")
        table.write_text("".join(
            " ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in rules))
        arguments["normalization_rule_tsv"] = os.path.relpath(table)  # is kept in the model
    arguments.update(options)
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(model_writer=out, **arguments)
    if rules is not None:
        table.unlink()
    path.write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def character_map(model):
    """The normalizer_spec's precompiled_charsmap of a model's bytes, without a protobuf library."""
    def fields(data):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte = data[at]
                at += 1
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 0:
                yield key >> 3, varint()
            else:
                size = {1: 8, 5: 4}.get(key & 7) or varint()
                yield key >> 3, data[at:at + size]
                at += size
    return next(v for k, v in fields(next(v for k, v in fields(model) if k == 3)) if k == 2)


def save_sentencepiece(folder, config, seed, **options):
    folder.mkdir(parents=True, exist_ok=True)
    processor = sentencepiece_model(folder / "spiece.model", **options)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    # Control pieces written in a text are the runtime's own matter: they are left out here.
    encode = lambda text, special: processor.encode(text)
    kept = (row for row in rows(encode, None, seed)
            if not any(s in row.get("text", "") for s in ("<s>", "</s>", "<unk>", "<pad>")))
    write_rows(folder / "vectors.jsonl", kept)


def save_marian(folder, seed):
    from transformers import MarianTokenizer
    folder.mkdir(parents=True, exist_ok=True)
    source = sentencepiece_model(folder / "source.spm", rules=RULES, vocab_size=330)
    target = sentencepiece_model(folder / "target.spm", rules=RULES, vocab_size=360,
                                 sentence_iterator=iter(SENTENCES[3:] + SENTENCES[:1]))
    names = ["</s>", "<unk>", ">>deu<<", ">>fra<<"]
    for processor in (source, target):
        for i in range(processor.get_piece_size()):
            piece = processor.id_to_piece(i)
            # Some pieces have no number: they become unknown.
            if not processor.is_control(i) and piece not in names and (i % 11 != 7):
                names.append(piece)
    names.append("<pad>")
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "mul", "separate_vocabs": False}))
    tokenizer = MarianTokenizer.from_pretrained(str(folder))
    tokenizer.punc_normalizer = lambda text: text
    encode = lambda text, special: tokenizer(text, add_special_tokens=special).input_ids
    write_rows(folder / "vectors.jsonl", rows(encode, None, seed))
    encode = lambda text, special: tokenizer(text_target=text, add_special_tokens=special).input_ids
    write_rows(folder / "target_vectors.jsonl", rows(encode, None, seed + 1))


def save_checkpoint(folder, kind, seed, make=None, model="sentencepiece.bpe.model", config={}, **options):
    """A folder as checkpoints have it that come without a tokenizer.json: a model and a configuration.

    transformers 5.24 reads it, unless `make` gives another tokenizer for the folder.
    """
    import transformers
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece_model(folder / model, **{"rules": RULES, "vocab_size": 330} | options)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind} | config))
    reading = getattr(transformers, kind)
    tokenizer = make(reading, folder) if make else reading.from_pretrained(str(folder))
    if hasattr(tokenizer, "_tokenizer"):
        fast = tokenizer._tokenizer
        encode = lambda text, special: fast.encode(text, add_special_tokens=special).ids
        decode = lambda ids, skip: fast.decode(ids, skip_special_tokens=skip)
    else:
        encode, decode = lambda text, special: tokenizer(text, add_special_tokens=special).input_ids, None
    write_rows(folder / "vectors.jsonl", rows(encode, decode, seed, 60))


def make_mbart(reading, folder):
    """With the model's map of characters, which published files of mBART have and 5.24 leaves out."""
    tokenizer = reading.from_pretrained(str(folder))
    charsmap = character_map((folder / "sentencepiece.bpe.model").read_bytes())
    tokenizer._tokenizer.normalizer = normalizers.Precompiled(charsmap)
    return tokenizer


def make_nllb(reading, folder):
    """With languages and mask where published files have their ids; 5.24 gives them none from a model alone."""
    from transformers.convert_slow_tokenizer import NllbConverter, SentencePieceExtractor
    from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES
    parts = SentencePieceExtractor(str(folder / "sentencepiece.bpe.model")).extract(models.BPE)
    parts = NllbConverter.convert_from_spm(**parts)
    parts["vocab"] |= {piece: len(parts["vocab"]) + i for i, piece in enumerate(FAIRSEQ_LANGUAGE_CODES + ["<mask>"])}
    del parts["additional_special_tokens"]
    return reading(**parts)


def make_m2m100(reading, folder):
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    names += [p for i in range(3, processor.get_piece_size()) if (p := processor.id_to_piece(i)) and i % 11 != 7]
    names += [f"madeupword{i:04}" for i in range(3)]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(names)}))
    return reading.from_pretrained(str(folder))


def save_checkpoints(data):
    mask = {"mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": False,
                           "rstrip": False, "single_word": False}}
    save_checkpoint(data / "xlmr-model", "XLMRobertaTokenizer", 11, config=mask)
    save_checkpoint(data / "camembert-model", "CamembertTokenizer", 12)
    save_checkpoint(data / "mbart-model", "MBartTokenizer", 13, make_mbart, config={"src_lang": "de_DE"})
    save_checkpoint(data / "mbart50-model", "MBart50Tokenizer", 14)
    save_checkpoint(data / "nllb-model", "NllbTokenizer", 15, make_nllb, model_type="bpe", vocab_size=420)
    save_checkpoint(data / "m2m100-model", "M2M100Tokenizer", 16, make_m2m100)
    save_checkpoint(data / "pegasus-model", "PegasusTokenizer", 17, model="spiece.model",
                    pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def template(single, pair, tokenizer, *names):
    return processors.TemplateProcessing(single=single, pair=pair,
                                         special_tokens=[(n, tokenizer.token_to_id(n)) for n in names])


def main():
    data = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "data")

    bert = wordpiece(normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=False,
                                                lowercase=True),
                     pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##", cleanup=True))
    bert.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    save(data / "wordpiece-accents", bert, 1)

    plain = wordpiece(normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True,
                                                 lowercase=False),
                      pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation(),
                                               pre_tokenizers.Digits(individual_digits=True)]),
                      decoders.WordPiece(prefix="@@", cleanup=False), prefix="@@", longest=20)
    plain.post_processor = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", plain, "[CLS]", "[SEP]")
    plain.add_tokens(["quick brown", AddedToken("ÜBER", normalized=True), AddedToken("dial", single_word=True)])
    save(data / "wordpiece-plain", plain, 2)

    nmt = unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(),
                                        normalizers.Replace(Regex(" {2,}"), " ")]),
                  pre_tokenizers.Metaspace(prepend_scheme="always"),
                  decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]),
                  ["<pad>", "</s>", "<unk>"], byte_fallback=True)
    nmt.post_processor = template("$A </s>", "$A </s> $B </s>", nmt, "</s>")
    save(data / "unigram-bytes", nmt, 3, NEW_MARKS)

    folder = data / "sentencepiece"
    save_sentencepiece(folder, {"tokenizer_class": "Unnamed"}, 4, rules=RULES)
    charsmap = character_map((folder / "spiece.model").read_bytes())
    save_sentencepiece(data / "sentencepiece-bytes", {"tokenizer_class": "Unnamed"}, 5, byte_fallback=True, vocab_size=600,
                       normalization_rule_name="identity", remove_extra_whitespaces=False)
    save_sentencepiece(data / "sentencepiece-bpe", {"tokenizer_class": "Unnamed"}, 6, model_type="bpe", rules=RULES,
                       byte_fallback=True, vocab_size=620)

    albert = unigram(normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.Replace("''", '"'),
                                           normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase(),
                                           normalizers.Precompiled(charsmap),
                                           normalizers.Replace(Regex(" {2,}"), " ")]),
                     pre_tokenizers.Metaspace(prepend_scheme="always"), decoders.Metaspace(prepend_scheme="always"),
                     ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"])
    albert.post_processor = template("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", albert, "[CLS]", "[SEP]")
    albert.add_special_tokens(["[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True, special=True)])
    save(data / "unigram-albert", albert, 7)

    xlmr = unigram(normalizers.Precompiled(charsmap),
                   pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
                   decoders.Metaspace(), ["<s>", "<pad>", "</s>", "<unk>"])
    xlmr.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    save(data / "unigram-precompiled", xlmr, 8)

    nllb = unigram(normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]),
                   pre_tokenizers.Metaspace(), decoders.Metaspace(), ["<s>", "<pad>", "</s>", "<unk>"])
    nllb.add_special_tokens(["eng_Latn", "deu_Latn", "zho_Hans", "<mask>"])
    nllb.post_processor = template("eng_Latn $A </s>", "eng_Latn $A $B </s>", nllb, "eng_Latn", "</s>")
    save(data / "languages", nllb, 9)

    save_marian(data / "marian-small", 10)
    save_checkpoints(data)


if __name__ == "__main__":
    main()
