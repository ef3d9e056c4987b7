// The arithmetic of plans: every line comes to what it says that it comes to.

#include "kvarena/capacity/memory_plan.hpp"
#include "kvarena/capacity/model_presets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <ostream>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace kvarena::capacity {
namespace {

/// Of whole numbers.
struct Fraction {
  __int128 over = 0;
  __int128 under = 1;

  friend bool operator==(const Fraction& a, const Fraction& b) {
    return a.over * b.under == b.over * a.under;
  }
  friend std::ostream& operator<<(std::ostream& out, const Fraction& f) {
    return out << static_cast<double>(f.over) / static_cast<double>(f.under);
  }
};

Fraction reduced(__int128 over, __int128 under) {
  __int128 common = over < 0 ? -over : over;  // by Euclid
  for (__int128 rest = under; rest != 0;) {
    const __int128 next = common % rest;
    common = rest;
    rest = next;
  }
  return {over / common, under / common};
}

/// What a line's arithmetic comes to. Words say what a number is of and count for nothing, nor do
/// remarks in parentheses; x multiplies.
class Evaluation {
 public:
  explicit Evaluation(const std::string& arithmetic) {
    static const std::regex remark(R"( \([^()0-9]*[a-z][^()]*\))");
    text_ = std::regex_replace(arithmetic, remark, "");
  }

  Fraction result() {
    const Fraction value = sum();
    EXPECT_EQ(next_, text_.size()) << "is left: " << text_.substr(next_);
    return value;
  }

 private:
  /// Goes past what counts for nothing; the next character, or 0.
  char peek() {
    while (next_ < text_.size()) {
      const auto rest = std::string_view(text_).substr(next_);
      const char c = rest.front();
      const bool is_word = std::isalpha(static_cast<unsigned char>(c)) != 0;
      if (c == ' ' || (c == ',' && depth_ == 0)) {
        ++next_;
      } else if (is_word && !rest.starts_with("x ") && !is_function(rest)) {
        const auto end = rest.find_first_of(" (),");
        next_ += std::min(end, rest.size());
      } else {
        return c;
      }
    }
    return '\0';
  }
  static bool is_function(std::string_view rest) {
    return rest.starts_with("ceil(") || rest.starts_with("floor(") || rest.starts_with("min(");
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++next_;
    return true;
  }

  Fraction sum() {
    Fraction value = product();
    while (true) {
      const bool is_minus = peek() == '-';
      if (!take('+') && !take('-')) return value;
      const Fraction other = product();
      value = reduced(value.over * other.under + (is_minus ? -1 : 1) * other.over * value.under,
                      value.under * other.under);
    }
  }
  Fraction product() {
    Fraction value = factor();
    while (true) {
      const bool is_quotient = peek() == '/';
      if (!take('x') && !take('/')) return value;
      const Fraction other = factor();
      value = is_quotient ? reduced(value.over * other.under, value.under * other.over)
                          : reduced(value.over * other.over, value.under * other.under);
    }
  }
  Fraction factor() {
    const char first = peek();
    if (first == '(') return in_parentheses().front();
    if (is_function(std::string_view(text_).substr(next_))) {
      next_ = text_.find('(', next_);
      const std::vector<Fraction> values = in_parentheses();
      if (first == 'm') return *std::ranges::min_element(values, is_less);
      const Fraction value = values.front();
      return {(value.over + (first == 'c' ? value.under - 1 : 0)) / value.under, 1};
    }
    EXPECT_TRUE(std::isdigit(static_cast<unsigned char>(first)))
        << "no number at " << text_.substr(next_) << " of " << text_;
    Fraction number;
    for (; next_ < text_.size(); ++next_) {
      const char c = text_[next_];
      const bool is_separator = c == ',' && next_ + 1 < text_.size() && text_[next_ + 1] != ' ';
      if (is_separator) continue;
      if (std::isdigit(static_cast<unsigned char>(c)) == 0) break;
      number.over = number.over * 10 + (c - '0');
    }
    return number;
  }
  std::vector<Fraction> in_parentheses() {
    ++next_;
    ++depth_;
    std::vector<Fraction> values = {sum()};
    while (take(',')) values.push_back(sum());
    EXPECT_TRUE(take(')')) << text_;
    --depth_;
    return values;
  }
  static bool is_less(const Fraction& a, const Fraction& b) {
    return a.over * b.under < b.over * a.under;
  }

  std::string text_;
  std::size_t next_ = 0;
  int depth_ = 0;
};

TEST(PlanLines, AnEvaluationIsOne) {
  const auto value = [](const char* arithmetic) { return Evaluation(arithmetic).result(); };
  EXPECT_EQ(value("24 layers x 2 heads x (64 + 64) elements x 2 B"), (Fraction{12'288, 1}));
  EXPECT_EQ(value("ceil(min(8,192, 1,024 + 15) / 16)"), (Fraction{65, 1}));
  EXPECT_EQ(value("1,000 + the largest of the three, 24 (bf16) - 4 / 8"), (Fraction{2047, 2}));
  EXPECT_EQ(value("floor(7 / 2) x 3"), (Fraction{9, 1}));
}

/// What has no arithmetic: what is the most, and what one more would lack.
bool is_prose(const PlanLine& line) {
  return line.name == "longest context" ||
         (line.name == "largest batch" && !line.arithmetic.starts_with("floor("));
}

void expect_true_lines(const ModelSpec& model, const PlanOptions& options) {
  const Result<MemoryPlan> planned = plan(model, options);
  if (!planned) return;  // a head that the blocks of a format do not divide
  for (const PlanLine& line : planned->lines) {
    if (is_prose(line)) continue;
    EXPECT_EQ(Evaluation(line.arithmetic).result(), (Fraction{line.value, 1}))
        << model.name << ", " << line.name << ": " << line.arithmetic << " = " << line.value << ' '
        << line.unit;
  }
}

class PlanLinesOf : public ::testing::TestWithParam<std::string_view> {};

TEST_P(PlanLinesOf, ComeToWhatTheySay) {
  ModelSpec model = *find_model_preset(GetParam());
  const PlanOptions h200{.memory_bytes = 150'109'880'320,
                         .context_tokens = std::min<std::int64_t>(model.shape.max_position, 9001),
                         .target = CacheTarget{.kind = DeviceKind::cuda, .num_sms = 132}};
  for (const std::int32_t tp : {1, 2, 3, 16}) {
    for (const std::int32_t pp : {1, 3}) {
      PlanOptions options = h200;
      options.tensor_parallel = tp;
      options.pipeline_parallel = pp;
      expect_true_lines(model, options);
    }
  }
  for (const std::string_view format : {"f32", "int8", "fp8_e4m3", "q8_0", "q4_K"}) {
    PlanOptions options = h200;
    options.kv = options.weights = *find_storage_format(format);
    options.kv_scale = ScaleKind::per_token_head;
    expect_true_lines(model, options);
  }
  for (const std::int32_t sms : {58, 132, 148}) {
    for (const std::int32_t sequences : {1, 4, 9, 32, 100, 1000}) {
      PlanOptions options = h200;
      options.target->num_sms = sms;
      options.max_sequences = sequences;
      expect_true_lines(model, options);
    }
  }
  PlanOptions options = h200;
  options.kept = KeptTokens::model;
  options.batch = 7;
  options.block_size_tokens = 3;
  options.utilization_permille = 987;
  expect_true_lines(model, options);
  options.target = CacheTarget{.kind = DeviceKind::host, .num_threads = 2};
  expect_true_lines(model, options);
  model.weights_bytes = 12'345'678'901;
  for (const std::int32_t tp : {1, 2, 7}) {
    options.tensor_parallel = tp;
    expect_true_lines(model, options);
  }
}

INSTANTIATE_TEST_SUITE_P(Presets, PlanLinesOf, ::testing::ValuesIn(model_preset_names()),
                         [](const auto& test) {
                           std::string name(test.param);
                           std::erase_if(name, [](unsigned char c) { return !std::isalnum(c); });
                           return name;
                         });

}  // namespace
}  // namespace kvarena::capacity
