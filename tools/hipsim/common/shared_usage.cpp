#include "shared_usage.h"

#include <elf.h>

#include <cstring>
#include <set>

namespace hipsim {

namespace {
class Object {
 public:
  explicit Object(const std::string& bytes) : bytes_(bytes) {
    if (bytes.size() < sizeof(Elf64_Ehdr) || bytes.compare(0, SELFMAG, ELFMAG) != 0) return;
    const auto header = at<Elf64_Ehdr>(0);
    for (std::size_t i = 0; i < header.e_shnum; ++i)
      sections_.push_back(at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    for (const Elf64_Shdr& section : sections_)
      if (section.sh_type == SHT_SYMTAB) read_symbols(section);
  }

  std::map<std::string, std::vector<SharedVariable>> usage() const {
    std::map<std::string, std::vector<SharedVariable>> made;
    const auto references = read_references();
    for (const auto& [address, function] : functions_) {
      std::set<std::size_t> variables;
      std::set<Elf64_Addr> seen;
      follow(address, references, seen, variables);
      for (const std::size_t i : variables)
        made[name_of(function)].push_back(
            {name_of(symbols_[i]), symbols_[i].st_value, symbols_[i].st_size});
    }
    return made;
  }

 private:
  struct References {
    std::set<std::size_t> variables;  // by symbol number
    std::set<Elf64_Addr> functions;   // by address
  };

  template <class T>
  T at(std::size_t offset) const {
    T value{};
    if (offset + sizeof value <= bytes_.size())
      std::memcpy(&value, bytes_.data() + offset, sizeof value);
    return value;
  }

  std::string name_of(const Elf64_Sym& symbol) const {
    const std::size_t offset = names_.sh_offset + symbol.st_name;
    return offset < bytes_.size() ? std::string(bytes_.c_str() + offset) : std::string();
  }

  void read_symbols(const Elf64_Shdr& table) {
    names_ = sections_.at(table.sh_link);
    for (std::size_t i = 0; i < table.sh_size / sizeof(Elf64_Sym); ++i) {
      symbols_.push_back(at<Elf64_Sym>(table.sh_offset + i * sizeof(Elf64_Sym)));
      const Elf64_Sym& symbol = symbols_.back();
      if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF)
        functions_[symbol.st_value] = symbol;
    }
  }

  // What each function's own code refers to.
  std::map<Elf64_Addr, References> read_references() const {
    std::map<Elf64_Addr, References> made;
    for (const Elf64_Shdr& section : sections_) {
      // Those kept of code, not those that the dynamic linker applies.
      if (section.sh_type != SHT_RELA || section.sh_info >= sections_.size() ||
          !(sections_[section.sh_info].sh_flags & SHF_EXECINSTR))
        continue;
      for (std::size_t i = 0; i < section.sh_size / sizeof(Elf64_Rela); ++i) {
        const auto entry = at<Elf64_Rela>(section.sh_offset + i * sizeof(Elf64_Rela));
        const std::size_t number = ELF64_R_SYM(entry.r_info);
        const auto from = containing(entry.r_offset);
        if (from == functions_.end() || number >= symbols_.size()) continue;
        const Elf64_Sym& symbol = symbols_[number];
        const int type = ELF64_ST_TYPE(symbol.st_info);
        if (type == STT_TLS && symbol.st_shndx != SHN_UNDEF)
          made[from->first].variables.insert(number);
        // A reference by section has the target in its addend, give or take an instruction.
        const Elf64_Addr target =
            symbol.st_value + static_cast<Elf64_Addr>(type == STT_SECTION ? entry.r_addend + 4 : 0);
        const auto to = containing(target);
        if (type != STT_TLS && symbol.st_shndx != SHN_UNDEF && to != functions_.end())
          made[from->first].functions.insert(to->first);
      }
    }
    return made;
  }

  std::map<Elf64_Addr, Elf64_Sym>::const_iterator containing(Elf64_Addr address) const {
    auto found = functions_.upper_bound(address);
    if (found == functions_.begin()) return functions_.end();
    --found;
    return address < found->first + found->second.st_size ? found : functions_.end();
  }

  static void follow(Elf64_Addr function, const std::map<Elf64_Addr, References>& references,
                     std::set<Elf64_Addr>& seen, std::set<std::size_t>& variables) {
    if (!seen.insert(function).second) return;
    const auto found = references.find(function);
    if (found == references.end()) return;
    variables.insert(found->second.variables.begin(), found->second.variables.end());
    for (const Elf64_Addr callee : found->second.functions)
      follow(callee, references, seen, variables);
  }

  const std::string& bytes_;
  std::vector<Elf64_Shdr> sections_;
  Elf64_Shdr names_{};
  std::vector<Elf64_Sym> symbols_;
  std::map<Elf64_Addr, Elf64_Sym> functions_;  // by address
};
}  // namespace

std::map<std::string, std::vector<SharedVariable>> shared_usage(const std::string& object) {
  return Object(object).usage();
}

}  // namespace hipsim
