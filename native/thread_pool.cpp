#include "thread_pool.h"

namespace trtdecode {

ThreadPool::ThreadPool(size_t num_threads) {
    for (size_t thread = 1; thread < num_threads; ++thread) {
        workers_.emplace_back([this, thread] { wait_for_work(thread); });
    }
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stopping_ = true;
    }
    started_.notify_all();
    for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(size_t num_items, const std::function<void(size_t, size_t)>& work) {
    const bool shared = !workers_.empty() && num_items > 1;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        work_ = &work;
        num_items_ = num_items;
        next_ = 0;
        if (shared) {
            num_busy_ = workers_.size();
            ++round_;
        }
    }
    if (shared) started_.notify_all();
    take_items(0);
    if (shared) {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [this] { return num_busy_ == 0; });
    }
}

void ThreadPool::take_items(size_t thread) {
    for (size_t item = next_++; item < num_items_; item = next_++) (*work_)(item, thread);
}

void ThreadPool::wait_for_work(size_t thread) {
    size_t seen_round = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
        started_.wait(lock, [&] { return stopping_ || round_ != seen_round; });
        if (stopping_) return;
        seen_round = round_;
        lock.unlock();
        take_items(thread);
        lock.lock();
        if (--num_busy_ == 0) finished_.notify_one();
    }
}

}  // namespace trtdecode
