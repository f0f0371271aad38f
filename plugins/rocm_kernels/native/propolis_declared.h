// What Python declares, held against what a module defines: lines that are generated behind it (see
// _declared.py) stop the build where the two differ.
#pragma once

#include "propolis_device.h"

template <int K>
struct StridedOf;

namespace declared {

template <class A, class B>
struct Same {
    static constexpr bool value = false;
};
template <class A>
struct Same<A, A> {
    static constexpr bool value = true;
};

// Addresses are of whatever lies there.
struct Pointer;
template <class T>
struct ParameterOf {
    typedef T type;
};
template <class T>
struct ParameterOf<T*> {
    typedef Pointer type;
};

template <class... T>
struct Parameters;
template <class Kernel>
struct ParametersOf;
template <class... T>
struct ParametersOf<void(T...)> {
    typedef Parameters<typename ParameterOf<T>::type...> type;
};

template <class T>
struct ElementOf {
    typedef T type;
};
template <class T, unsigned long N>
struct ElementOf<T[N]> {
    typedef typename ElementOf<T>::type type;
};

}  // namespace declared

// Within the namespace, by the generated lines.
#define DECLARED_CONSTANT(name, is) \
    static_assert(name == is, #name " is " #is " in Python, and something else here");

#define DECLARED_KERNEL(name, ...)                                                                 \
    static_assert(Same<ParametersOf<decltype(name)>::type, Parameters<__VA_ARGS__>>::value,        \
                  "kernel " #name " is declared with (" #__VA_ARGS__ "), and takes something else");

// `count` elements of T, so many bytes behind the start.
#define DECLARED_FIELD(structure, name, T, count, start)                                           \
    static_assert(__builtin_offsetof(structure, name) == start &&                                  \
                      sizeof(structure::name) == sizeof(T) * count &&                              \
                      Same<ElementOf<decltype(structure::name)>::type, T>::value,                  \
                  #structure "::" #name " is declared as " #count " " #T " at byte " #start        \
                             ", and is something else");

#define DECLARED_SIZE(structure, bytes)                                                            \
    static_assert(sizeof(structure) == bytes,                                                      \
                  #structure " is declared with " #bytes " bytes, and has another number");
