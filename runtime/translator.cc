#include "runtime/translator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/session.h"

namespace volvelle {
namespace {

constexpr float kForbidden = -std::numeric_limits<float>::infinity();

// What a step adds to a hypothesis.
struct Candidate {
  size_t beam;
  int32_t token;
  double sum;
};

struct Beam {
  std::vector<int32_t> tokens;  // the start token first
  double sum = 0;
};

// scores [vocabulary] = log softmax(scores)
void log_softmax(std::span<float> scores) {
  const float largest = std::ranges::max(scores);
  double sum = 0;
  for (const float score : scores) sum += std::exp(double{score} - largest);
  const auto shift = static_cast<float>(largest + std::log(sum));
  for (float& score : scores) score -= shift;
}

// Forbids what would repeat a sequence of `size` tokens.
void forbid_repeats(size_t size, std::span<const int32_t> tokens, std::span<float> scores) {
  if (size == 0 || tokens.size() + 1 < size) return;
  const auto last = tokens.last(size - 1);
  for (size_t first = 0; first + size <= tokens.size(); ++first) {
    if (std::ranges::equal(tokens.subspan(first, size - 1), last)) {
      scores[tokens[first + size - 1]] = kForbidden;
    }
  }
}

void force(int32_t token, std::span<float> scores) {
  std::ranges::fill(scores, kForbidden);
  scores[token] = 0;
}

// The rules that a checkpoint states for the token after `tokens`, the start token first.
void apply_rules(const Generation& settings, std::span<const int32_t> tokens,
                 std::span<float> scores) {
  forbid_repeats(settings.no_repeat_ngram, tokens, scores);
  for (const std::vector<int32_t>& word : settings.bad_words) {
    const size_t before = word.size() - 1;
    if (before > tokens.size() || (before == 0 && std::ranges::contains(settings.eos, word[0]))) {
      continue;
    }
    if (std::ranges::equal(std::span(word).first(before), tokens.last(before))) {
      scores[word.back()] = kForbidden;
    }
  }
  if (tokens.size() < settings.min_length) {
    for (const int32_t end : settings.eos) scores[end] = kForbidden;
  }
  if (settings.forced_bos >= 0 && tokens.size() == 1) force(settings.forced_bos, scores);
  if (settings.forced_eos >= 0 && tokens.size() + 1 == settings.max_length) {
    force(settings.forced_eos, scores);
  }
}

}  // namespace

struct Translator::State {
  std::shared_ptr<const Model> model;
  Options options;
  std::unique_ptr<Encoder> encoder;
  std::unique_ptr<Session> decoder;
  std::vector<float> scores;  // [beams, vocabulary]

  Result<void> read(std::span<const int32_t> source);
  Result<Hypothesis> search(const Generation& settings, const EachToken& each);
  Result<Hypothesis> search_beams(const Generation& settings);
  std::vector<Candidate> best_candidates(const Generation& settings, std::span<const Beam> beams,
                                         size_t count);
};

Result<std::unique_ptr<Translator>> Translator::open(std::shared_ptr<const Model> model,
                                                     ThreadPool& pool, const Options& options) {
  if (model->encoder() == nullptr || !model->generates()) {
    return fail("{}: has no encoder with a decoder behind it, which translating takes",
                model->path());
  }
  std::unique_ptr<State> state(new State{.model = model, .options = options});
  VOLVELLE_ASSIGN_OR_RETURN(state->encoder,
                            Encoder::open(model, pool, nullptr, options.longest_source));
  VOLVELLE_ASSIGN_OR_RETURN(
      state->decoder,
      Session::open(model, pool,
                    {.cache = CacheType::kF32,
                     .context = std::min(options.longest_target, model->decoder().position_limit),
                     .chunk = std::min<size_t>(options.longest_target, 512),
                     .lanes = options.beams}));
  return std::unique_ptr<Translator>(new Translator(std::move(state)));
}

Translator::Translator(std::unique_ptr<State> state) : state_(std::move(state)) {}
Translator::~Translator() = default;

Result<void> Translator::State::read(std::span<const int32_t> source) {
  const Sentence sentence{{source.begin(), source.end()}, {}};
  return encoder->run({&sentence, 1},
                      [&](size_t, size_t rows, std::span<const float> hidden) -> Result<void> {
                        return decoder->read_source(hidden, rows);
                      });
}

Result<Hypothesis> Translator::State::search(const Generation& settings, const EachToken& each) {
  std::vector<int32_t> tokens = {settings.decoder_start};
  while (tokens.size() < settings.max_length) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::span<const float> logits,
                              decoder->feed_each(std::span(tokens).last(1)));
    scores.assign(logits.begin(), logits.end());
    apply_rules(settings, tokens, scores);
    const auto best = std::ranges::max_element(scores);
    tokens.push_back(static_cast<int32_t>(best - scores.begin()));
    if (each) VOLVELLE_RETURN_IF_ERROR(each(tokens.back()));
    if (std::ranges::contains(settings.eos, tokens.back())) break;
  }
  return Hypothesis{{tokens.begin() + 1, tokens.end()}, 0};
}

// The `count` best continuations of all beams, best first; scores are log-probabilities under the
// rules.
std::vector<Candidate> Translator::State::best_candidates(const Generation& settings,
                                                          std::span<const Beam> beams,
                                                          size_t count) {
  const size_t vocabulary = model->vocabulary();
  std::vector<Candidate> candidates;
  for (size_t b = 0; b < beams.size(); ++b) {
    const std::span<float> row(&scores[b * vocabulary], vocabulary);
    log_softmax(row);
    apply_rules(settings, beams[b].tokens, row);
    for (size_t token = 0; token < vocabulary; ++token) {
      if (row[token] == kForbidden) continue;
      candidates.push_back({b, static_cast<int32_t>(token), beams[b].sum + row[token]});
    }
  }
  count = std::min(count, candidates.size());
  std::ranges::partial_sort(candidates, candidates.begin() + static_cast<ptrdiff_t>(count),
                            std::ranges::greater(), &Candidate::sum);
  candidates.resize(count);
  return candidates;
}

Result<Hypothesis> Translator::State::search_beams(const Generation& settings) {
  const size_t width = settings.beams;
  const auto normed = [&](double sum, size_t length) {
    return sum / std::pow(static_cast<double>(length), double{settings.length_penalty});
  };
  std::vector<Beam> running = {{{settings.decoder_start}, 0}};
  std::vector<Hypothesis> finished;  // at most `width`, best first
  while (!running.empty()) {
    std::vector<int32_t> last;
    for (const Beam& beam : running) last.push_back(beam.tokens.back());
    VOLVELLE_ASSIGN_OR_RETURN(const std::span<const float> logits, decoder->feed_each(last));
    scores.assign(logits.begin(), logits.end());
    const std::vector<Candidate> candidates =
        best_candidates(settings, running, std::max<size_t>(2, 1 + settings.eos.size()) * width);
    const size_t length = running[0].tokens.size();  // of what follows the start, this step counted
    const bool at_end = length + 1 >= settings.max_length;
    const auto ends = [&](const Candidate& candidate) {
      return at_end || std::ranges::contains(settings.eos, candidate.token);
    };

    for (size_t i = 0; i < std::min(width, candidates.size()); ++i) {
      const Candidate& candidate = candidates[i];
      const bool full = finished.size() == width;
      if (!ends(candidate) || (full && settings.early_stopping == EarlyStopping::kYes)) continue;
      const double score = normed(candidate.sum, length);
      if (full && score <= finished.back().score) continue;
      if (full) finished.pop_back();
      const std::vector<int32_t>& tokens = running[candidate.beam].tokens;
      Hypothesis hypothesis{{tokens.begin() + 1, tokens.end()}, score};
      hypothesis.tokens.push_back(candidate.token);
      finished.insert(
          std::ranges::upper_bound(finished, score, std::ranges::greater(), &Hypothesis::score),
          std::move(hypothesis));
    }

    std::vector<Beam> next;
    std::vector<size_t> parents;
    for (const Candidate& candidate : candidates) {
      if (next.size() == width || at_end) break;
      if (ends(candidate)) continue;
      next.push_back({running[candidate.beam].tokens, candidate.sum});
      next.back().tokens.push_back(candidate.token);
      parents.push_back(candidate.beam);
    }
    if (!next.empty()) decoder->follow(parents);
    running = std::move(next);
    if (running.empty() || finished.size() < width) continue;
    if (settings.early_stopping == EarlyStopping::kYes) break;
    const bool hopeful =
        settings.early_stopping == EarlyStopping::kNever && settings.length_penalty > 0;
    const double best = normed(running[0].sum, hopeful ? settings.max_length - 1 : length);
    if (best <= finished.back().score) break;
  }
  if (finished.empty()) {
    return fail("{}: its rules leave no token that could come next", model->path());
  }
  return finished.front();
}

Result<Hypothesis> Translator::translate(std::span<const int32_t> source,
                                         const Generation& settings, const EachToken& each) {
  const Sentence sentence{{source.begin(), source.end()}, {}};
  Hypothesis found;
  VOLVELLE_RETURN_IF_ERROR(translate_all(
      {&sentence, 1}, settings,
      [&](size_t, Hypothesis best) -> Result<void> {
        found = std::move(best);
        return {};
      },
      each));
  return found;
}

Result<void> Translator::translate_all(std::span<const Sentence> sources,
                                       const Generation& settings, const Sink& sink,
                                       const EachToken& each) {
  State& state = *state_;
  Generation bounded = settings;
  if (settings.decoder_start < 0) {
    return fail("{}: does not say which token its decoder starts with", state.model->path());
  }
  if (settings.beams > state.options.beams) {
    return fail("{} beams are more than the {} that were prepared for", settings.beams,
                state.options.beams);
  }
  const size_t limit = state.decoder->context() + 1;  // the last token is not fed
  bounded.max_length =
      settings.max_length == 0 ? std::min<size_t>(limit, 20) : std::min(settings.max_length, limit);
  return state.encoder->run(
      sources, [&](size_t i, size_t rows, std::span<const float> hidden) -> Result<void> {
        VOLVELLE_RETURN_IF_ERROR(state.decoder->read_source(hidden, rows));
        VOLVELLE_ASSIGN_OR_RETURN(Hypothesis best, settings.beams > 1
                                                       ? state.search_beams(bounded)
                                                       : state.search(bounded, each));
        return sink(i, std::move(best));
      });
}

Result<std::vector<float>> Translator::logits(std::span<const int32_t> source,
                                              std::span<const int32_t> targets) {
  VOLVELLE_RETURN_IF_ERROR(state_->read(source));
  std::vector<float> all;
  VOLVELLE_RETURN_IF_ERROR(state_->decoder->feed_all(
      targets, [&](size_t, size_t, std::span<const float> rows) -> Result<void> {
        all.insert(all.end(), rows.begin(), rows.end());
        return {};
      }));
  return all;
}

size_t Translator::bytes() const {
  return state_->encoder->bytes() + state_->decoder->packed_bytes() +
         state_->decoder->scratch_bytes() + state_->decoder->cache_bytes();
}

}  // namespace volvelle
