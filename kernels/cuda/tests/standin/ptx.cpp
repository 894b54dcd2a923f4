#include "ptx.hpp"

#include <cctype>
#include <cstdlib>

namespace standin {

namespace {

/// The words and marks of PTX, without comments.
class Words {
public:
    explicit Words(std::string_view text_) : text(text_) {}

    /// Empty at the end.
    std::string_view next() {
        skip_blanks();
        if (at == text.size()) return {};
        const size_t begin = at;
        if (is_mark(text[at])) return text.substr(at++, 1);
        while (at < text.size() && !is_mark(text[at]) && !is_blank(text[at])) ++at;
        return text.substr(begin, at - begin);
    }

private:
    static bool is_mark(char c) { return std::string_view("()[]{},;:=").find(c) != std::string_view::npos; }
    static bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

    void skip_blanks() {
        for (;;) {
            while (at < text.size() && is_blank(text[at])) ++at;
            if (text.substr(at, 2) == "//") {
                at = std::min(text.find('\n', at), text.size());
            } else if (text.substr(at, 2) == "/*") {
                at = std::min(text.find("*/", at), text.size() - 2) + 2;
            } else {
                return;
            }
        }
    }

    std::string_view text;
    size_t at = 0;
};

size_t number(std::string_view word) { return std::strtoul(std::string(word).c_str(), nullptr, 10); }

/// Bytes of ".u64", ".f32", ".b8"; 0 for other words.
size_t bytes_of_type(std::string_view word) {
    if (word.size() < 3 || word[0] != '.' || std::string_view("usfb").find(word[1]) == std::string_view::npos) return 0;
    if (std::isdigit(static_cast<unsigned char>(word[2])) == 0) return 0;
    return number(word.substr(2)) / 8;
}

/// Reads "... .u64 name" or "... .b8 name[24]" up to the mark behind it: its bytes.
size_t declared_bytes(Words& words, std::string_view& mark) {
    size_t bytes = 0;
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        if (const size_t type = bytes_of_type(word); type != 0) bytes = type;
        if (word == "[") bytes *= number(words.next());
        if (word == "," || word == ")" || word == ";") {
            mark = word;
            return bytes;
        }
    }
    return bytes;
}

void read_entry(Words& words, Ptx& ptx) {
    PtxEntry& entry = ptx.entries[std::string(words.next())];
    std::string_view word = words.next();
    std::string_view mark = word;
    while (mark == "(" || mark == ",") {
        const size_t bytes = declared_bytes(words, mark);
        if (bytes != 0) entry.parameter_bytes.push_back(bytes);
        if (bytes == 0 && mark != ")") return;
    }
    for (word = words.next(); !word.empty() && word != "{"; word = words.next()) {
        if (word == ".maxntid" || word == ".reqntid") entry.most_threads = number(words.next());
    }
    for (int depth = 1; depth > 0; ) {
        word = words.next();
        if (word.empty()) return;
        if (word == "{") ++depth;
        if (word == "}") --depth;
        if (word == ".shared") entry.shared_bytes += declared_bytes(words, mark);
    }
}

}  // namespace

bool read_ptx(std::string_view text, Ptx& ptx) {
    Words words(text);
    for (std::string_view word = words.next(); !word.empty(); word = words.next()) {
        if (word == ".version") {
            const std::string version(words.next());
            ptx.version = static_cast<int>(std::strtod(version.c_str(), nullptr) * 10 + 0.5);
        } else if (word == ".target") {
            const std::string_view target = words.next();
            if (target.starts_with("sm_")) ptx.target = static_cast<int>(number(target.substr(3)));
        } else if (word == ".entry") {
            read_entry(words, ptx);
        }
    }
    return ptx.version != 0 && ptx.target != 0;
}

int newest_ptx(int driver) {
    const int major = driver / 1000, minor = driver % 1000 / 10;
    if (major >= 13) return 90 + (major - 13) * 10 + minor;
    // CUDA 12.0 began with PTX 8.0; 12.7 never came out, so that 12.8 has 8.7.
    if (major == 12) return 80 + (minor >= 8 ? minor - 1 : minor);
    return 70 + minor;
}

}  // namespace standin
