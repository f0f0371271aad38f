// How many helpers pay.  Beside other programs all wait for one that has lost its core, so that fewer may do more: of
// SmolLM2's steps beside two busy programs, on two cores, none did.  That is found out by trying: while the system
// takes the caller's core away, calls of the same kinds are timed with as many helpers as there are and with fewer; and
// later with more again.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace propolis {

class Crowd {
public:
    typedef std::chrono::steady_clock Clock;
    typedef Clock::time_point Point;
    typedef Clock::duration Time;
    static constexpr Time TRIAL = std::chrono::milliseconds(150);
    static constexpr Time SHORTEST = std::chrono::milliseconds(400), LONGEST = std::chrono::seconds(3);

    // Of so many helpers, those that the next call is to have.
    int allowed(int helpers) const {
        return std::max(0, helpers - (phase_ == Phase::SECOND ? other_ : level_) * step(helpers));
    }
    // Whether the next call is to be timed.
    bool watching() const { return phase_ == Phase::FIRST || phase_ == Phase::SECOND; }
    // Whether it may be time to look how often the caller lost its core: while helpers are away at each call, which
    // may be long; else seldom.
    bool looks() { return level_ > 0 || ++calls_ % EACH == 0; }
    bool looks(Point now) const { return now - looked_ >= SOON; }

    // It did so often since it began, until now; a caller is told from another by its number.  So many helpers there are.
    void look(std::uint64_t caller, std::int64_t lost, int helpers, Point now) {
        const double often = (double)(lost - lost_) / std::chrono::duration<double>(now - looked_).count();
        const bool known = caller == caller_;
        caller_ = caller, lost_ = lost, looked_ = now;
        if (!known || watching()) return;
        if (phase_ == Phase::QUIET) {
            if (often > CROWDED) begin(1, now);
        } else if (level_ > 0 && often < ALONE) {
            level_ = 0;
            phase_ = Phase::QUIET;
        } else if (now >= until_) {
            const int deepest = (helpers + step(helpers) - 1) / step(helpers);
            if (level_ == 0) phase_ = Phase::QUIET;
            else begin((fewer_ = !fewer_) && level_ < deepest ? level_ + 1 : level_ - 1, now);
        }
    }
    // A call that was watched took so long; `work` and `tasks` say of what kind it was.
    void took(const void* work, std::int64_t tasks, Time time, Point now) {
        Kind& kind = kinds_[slot_of(work, tasks)];
        if (!kind.work) kind.work = work, kind.tasks = tasks;
        if (kind.work == work && kind.tasks == tasks) {
            kind.count[phase_ == Phase::SECOND] += 1;
            kind.time[phase_ == Phase::SECOND] += time;
        }
        if (now < until_) return;
        if (phase_ == Phase::FIRST) {
            phase_ = Phase::SECOND;
            until_ = now + TRIAL;
            return;
        }
        const bool better = faster();
        if (better) level_ = other_;
        hold_ = better ? SHORTEST : std::min(2 * hold_, LONGEST);
        phase_ = Phase::HELD;
        until_ = now + hold_;
    }
    int level() const { return level_; }

private:
    // As many helpers as there are; timed with as many as of late, and with others; that is decided, for a while.
    enum class Phase { QUIET, FIRST, SECOND, HELD };
    struct Kind {
        const void* work;
        std::int64_t tasks;
        std::int64_t count[2];
        Time time[2];
    };
    static constexpr int LEVELS = 4, KINDS = 64;
    static constexpr unsigned EACH = 128;                // calls
    static constexpr double CROWDED = 40, ALONE = 10;    // times a second
    static constexpr Time SOON = std::chrono::milliseconds(50);
    static constexpr Time LEAST = TRIAL / 5;  // of calls that both counts had, to say which is faster

    static int step(int helpers) { return std::max(1, (helpers + LEVELS - 1) / LEVELS); }
    static std::size_t slot_of(const void* work, std::int64_t tasks) {
        const std::uint64_t mixed = (std::uint64_t)(std::uintptr_t)work + (std::uint64_t)tasks * 0x9e3779b97f4a7c15u;
        return (mixed >> 4 ^ mixed >> 33) % KINDS;
    }
    void begin(int other, Point now) {
        phase_ = Phase::FIRST;
        other_ = other;
        until_ = now + TRIAL;
        for (Kind& kind : kinds_) kind = Kind{};
    }
    // Whether calls of the kinds that both saw took less with the other count, clearly where that is lower.  Where there
    // were too few of them the higher count is taken.
    bool faster() const {
        double own = 0, other = 0;
        for (const Kind& kind : kinds_) {
            if (!kind.count[0] || !kind.count[1]) continue;
            const double both = (double)std::min(kind.count[0], kind.count[1]);
            own += both * (double)kind.time[0].count() / (double)kind.count[0];
            other += both * (double)kind.time[1].count() / (double)kind.count[1];
        }
        if (own < (double)LEAST.count()) return other_ < level_;
        return other < (other_ < level_ ? 1.0 : 0.95) * own;
    }

    Phase phase_ = Phase::QUIET;
    int level_ = 0, other_ = 0;
    unsigned calls_ = 0;
    bool fewer_ = false;
    std::uint64_t caller_ = 0;
    std::int64_t lost_ = 0;
    Time hold_ = SHORTEST;
    Point until_{}, looked_{};
    Kind kinds_[KINDS] = {};
};

}  // namespace propolis
