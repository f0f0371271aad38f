#include "rtc_scan.h"

#include <cctype>
#include <vector>

namespace hipsim {

namespace {
constexpr char kMark[] = "__hipsim_global__";

bool in_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Behind what begins at `at`: a comment, string, character or any single character.
std::size_t skip_one(const std::string& text, std::size_t at) {
  const char c = text[at];
  if (c == '#' && (at == 0 || text[at - 1] == '\n')) {  // a line marker or pragma
    const std::size_t end = text.find('\n', at);
    return end == std::string::npos ? text.size() : end + 1;
  }
  if (c == '"' && at > 0 && text[at - 1] == 'R') {
    const std::size_t open = text.find('(', at);
    if (open == std::string::npos) return text.size();
    const std::string close = ")" + text.substr(at + 1, open - at - 1) + "\"";
    const std::size_t end = text.find(close, open);
    return end == std::string::npos ? text.size() : end + close.size();
  }
  if (c == '"' ||
      (c == '\'' && !(at > 0 && std::isdigit(static_cast<unsigned char>(text[at - 1]))))) {
    std::size_t i = at + 1;
    while (i < text.size() && text[i] != c && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
    return i + 1;
  }
  return at + 1;
}

// Behind the bracket that closes the one at `at`, or npos.
std::size_t skip_brackets(const std::string& text, std::size_t at, char open, char close) {
  int depth = 0;
  while (at < text.size()) {
    if (text[at] == open) ++depth;
    if (text[at] == close && --depth == 0) return at + 1;
    at = skip_one(text, at);
  }
  return std::string::npos;
}

struct Kernel {
  std::string name;
  std::size_t end = std::string::npos;  // behind its body
};

// The kernel whose mark ends at `at`: the name is the one before the first parenthesis that
// belongs to no attribute.
Kernel find_kernel(const std::string& text, std::size_t at) {
  Kernel kernel;
  std::string name;
  while (at < text.size()) {
    const char c = text[at];
    if (in_name(c)) {
      std::size_t end = at;
      while (end < text.size() && in_name(text[end])) ++end;
      name = text.substr(at, end - at);
      at = end;
    } else if (c == '(' && (name == "__attribute__" || name == "alignas" || name == "decltype")) {
      at = skip_brackets(text, at, '(', ')');
    } else if (c == '[') {
      at = skip_brackets(text, at, '[', ']');
    } else if (c == '(') {
      kernel.name = name;
      at = skip_brackets(text, at, '(', ')');
      break;
    } else if (c == ';' || c == '{' || c == '=') {
      return {};
    } else {
      at = skip_one(text, at);
    }
  }
  while (at < text.size() && text[at] != '{' && text[at] != ';') at = skip_one(text, at);
  if (at >= text.size() || text[at] == ';') return {};  // a declaration
  kernel.end = skip_brackets(text, at, '{', '}');
  return kernel;
}

// Whether the text before `at` ends a template's head: "template <...>", perhaps with words
// such as static behind it.
bool is_template(const std::string& text, std::size_t at) {
  while (at > 0) {
    while (at > 0 && std::isspace(static_cast<unsigned char>(text[at - 1]))) --at;
    std::size_t begin = at;
    while (begin > 0 && in_name(text[begin - 1])) --begin;
    if (begin == at) break;
    const std::string word = text.substr(begin, at - begin);
    if (word != "static" && word != "inline" && word != "void") return false;
    at = begin;
  }
  return at > 0 && text[at - 1] == '>';
}
}  // namespace

std::string register_kernels(std::string text) {
  struct Insertion {
    std::size_t at;
    std::string text;
  };
  std::vector<Insertion> insertions;
  constexpr std::size_t length = sizeof kMark - 1;
  int number = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (text.compare(at, length, kMark) != 0 || (at > 0 && in_name(text[at - 1]))) {
      at = skip_one(text, at);
      continue;
    }
    text.replace(at, length, length, ' ');
    if (!is_template(text, at)) {
      const Kernel kernel = find_kernel(text, at + length);
      if (kernel.end != std::string::npos)
        insertions.push_back({kernel.end, " static const bool hipsim_registered_" +
                                              std::to_string(number++) + " = ::hipsim_register<&" +
                                              kernel.name + ">(\"" + kernel.name + "\");"});
    }
    at += length;
  }
  for (auto i = insertions.rbegin(); i != insertions.rend(); ++i) text.insert(i->at, i->text);
  return text;
}

}  // namespace hipsim
