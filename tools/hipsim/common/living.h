// The descriptors of one kind that live: whoever calls may hold any pointer.
#pragma once
#include <memory>
#include <mutex>
#include <set>

namespace hipsim {

template <class T>
class Living {
 public:
  T* make() {
    auto made = std::make_unique<T>();
    const std::lock_guard lock(mutex_);
    return *all_.insert(made.release()).first;
  }
  bool has(T* descriptor) {
    const std::lock_guard lock(mutex_);
    return all_.count(descriptor);
  }
  bool destroy(T* descriptor) {
    const std::lock_guard lock(mutex_);
    if (!all_.erase(descriptor)) return false;
    delete descriptor;
    return true;
  }

 private:
  std::mutex mutex_;
  std::set<T*> all_;
};

}  // namespace hipsim
