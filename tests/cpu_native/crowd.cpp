// How many helpers the pool's calls have beside other programs, in a time of the test's own.
#include "crowd.h"

#include <cstdio>
#include <cstdlib>

using propolis::Crowd;

namespace {

Crowd::Point now{std::chrono::hours(1)};
double lost = 0;  // times that the caller lost its core
Crowd::Time us(double n) {
    return std::chrono::duration_cast<Crowd::Time>(std::chrono::duration<double, std::micro>(n));
}

// Steps of three kinds of calls for so many milliseconds.  What a call is takes the less the more share it, but those
// who share it lose their cores, and are waited for: each for so much of that work's time.  How many helpers calls
// had, on the average.
double steps(Crowd& crowd, int helpers, int ms, double late, double often = 100, double size = 300) {
    static const char kinds[3] = {};
    const Crowd::Point end = now + std::chrono::milliseconds(ms);
    double had = 0, calls = 0;
    while (now < end) {
        for (int kind = 0; kind < 3; ++kind, ++calls) {
            const int with = crowd.allowed(helpers);
            const bool watching = crowd.watching();
            const double alone = size * (kind + 1), took = alone / (with + 1) + alone * late * with;
            now += us(took);
            lost += took * often / 1e6;
            had += with;
            if (watching) crowd.took(kinds + kind, kind + 1, us(took), now);
            if (crowd.looks() && crowd.looks(now)) crowd.look(1, (std::int64_t)lost, helpers, now);
        }
    }
    return had / calls;
}
void expect(const char* what, bool right, double found) {
    if (right) return;
    std::printf("%s: %g\n", what, found);
    std::exit(1);
}

}  // namespace

int main() {
    double with;
    Crowd crowd;
    with = steps(crowd, 1, 5000, 0.8, 1);
    expect("nobody loses a core", with == 1, with);
    with = steps(crowd, 1, 10000, 0.2);
    expect("a helper that pays", with > 0.9, with);
    with = steps(crowd, 1, 20000, 0.8);
    expect("a helper that costs", with < 0.15, with);
    steps(crowd, 1, 1500, 0, 0);
    with = steps(crowd, 1, 1000, 0, 0);
    expect("it comes back when nobody else is there", with == 1, with);
    steps(crowd, 1, 20000, 0.8);
    steps(crowd, 1, 4000, 0.1);
    with = steps(crowd, 1, 5000, 0.1);
    expect("and when it pays again", with > 0.85, with);

    // Of many, as many go as make it faster: of fifteen five or six would be best.
    Crowd wide;
    steps(wide, 15, 5000, 0.025);
    with = steps(wide, 15, 20000, 0.025);
    expect("of many some", with > 3 && with < 9, with);
    steps(wide, 15, 5000, 0, 0);
    with = steps(wide, 15, 1000, 0, 0);
    expect("of many all again", with == 15, with);

    // Calls of some ten milliseconds bring a helper back, whether they can be compared or not.
    for (double size : {8e3, 20e3, 60e3}) {
        Crowd slow;
        steps(slow, 1, 20000, 0.8);
        expect("it is away", slow.level() == 1, slow.level());
        steps(slow, 1, 1000, 0, 0, size);
        with = steps(slow, 1, 1000, 0, 0, size);
        expect("long calls have it again", with == 1, with);
    }
    // Of one helper there are two counts, whatever noise says.
    Crowd one;
    for (int i = 0; i < 300; ++i) {
        steps(one, 1, 100, i % 3 ? 0.8 : 0.3);
        expect("one helper more or less", one.level() <= 1, one.level());
    }

    // Callers that take turns tell nothing of each other.
    Crowd two;
    for (int i = 0; i < 4000; ++i) two.look(i % 2, i * 1000, 1, now += us(500));
    expect("callers in turn", !two.watching() && two.level() == 0, two.level());
    std::printf("right\n");
}
