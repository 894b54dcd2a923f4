#include "settings.hpp"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace standin {

namespace {

template <typename Number>
bool read_number(const std::string& text, Number& number) {
    Number read{};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), read);
    if (result.ec != std::errc{} || result.ptr != text.data() + text.size()) return false;
    number = read;
    return true;
}

Settings from_environment() {
    constexpr struct { const char *variable, *key; } variables[] = {
        {"CUDA_STANDIN", "mode"},           {"CUDA_STANDIN_SEED", "seed"},
        {"CUDA_STANDIN_DEVICES", "devices"}, {"CUDA_STANDIN_MEMORY", "memory"},
        {"CUDA_STANDIN_LOST_AFTER", "lost_after"}, {"CUDA_STANDIN_DRIVER", "driver"},
        {"CUDA_STANDIN_REPORT", "report"},   {"CUDA_STANDIN_CAPTURES", "captures"},
        {"CUDA_STANDIN_PEERS", "peers"},     {"CUDA_STANDIN_WRONG", "wrong"},
        {"CUDA_STANDIN_CRASHES", "crashes"}, {"CUDA_STANDIN_HANGS", "hangs"},
        {"CUDA_STANDIN_REFUSES", "refuses"}, {"CUDA_STANDIN_CAPABILITY", "capability"},
        {"CUDA_STANDIN_LOST_BY", "lost_by"},
    };
    Settings settings;
    for (const auto& [variable, key] : variables) {
        const char* value = std::getenv(variable);
        if (value == nullptr || configure(settings, key, value)) continue;
        std::fprintf(stderr, "stand-in: %s=%s cannot be read\n", variable, value);
        std::abort();
    }
    return settings;
}

}  // namespace

Settings& settings() {
    static auto& all = *new Settings(from_environment());
    return all;
}

bool configure(Settings& settings, const std::string& key, const std::string& value) {
    if (key == "seed") return read_number(value, settings.seed);
    if (key == "devices") return read_number(value, settings.devices) && settings.devices >= 0 && settings.devices <= 16;
    if (key == "capability") return read_number(value, settings.capability) && settings.capability >= 10;
    if (key == "memory") return read_number(value, settings.memory);
    if (key == "lost_after") {
        uint64_t launches = 0;
        if (!read_number(value, launches)) return false;
        settings.lost_after = launches == 0 ? std::nullopt : std::optional(launches);
        return true;
    }
    if (key == "captures") {
        settings.captures = value != "no";
        settings.breaks_captures = value == "broken";
        return value == "yes" || value == "no" || value == "broken";
    }
    if (key == "driver") return read_number(value, settings.driver);
    constexpr struct { const char* key; std::string Settings::*text; } texts[] = {
        {"report", &Settings::report}, {"wrong", &Settings::wrong},     {"crashes", &Settings::crashes},
        {"hangs", &Settings::hangs},   {"refuses", &Settings::refuses},
        {"lost_by", &Settings::lost_by},
    };
    for (const auto& [name, text] : texts) {
        if (key != name) continue;
        settings.*text = value;
        return true;
    }
    if (key == "peers") {
        settings.peers = value != "none";
        return value == "all" || value == "none";
    }
    if (key == "mode") {
        settings.strict = value != "relaxed";
        return value == "strict" || value == "relaxed";
    }
    return false;
}

}  // namespace standin
