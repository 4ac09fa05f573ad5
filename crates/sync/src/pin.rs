//! Threads pinned to a processor.

/// The processors of unpinned threads, set when a thread is first pinned: new threads inherit the
/// affinity of the thread that starts them.
#[cfg(target_os = "linux")]
static ALL: std::sync::OnceLock<rustix::thread::CpuSet> = std::sync::OnceLock::new();

/// Allows the calling thread to run on all processors of the process.
pub(crate) fn to_all_processors() {
    #[cfg(target_os = "linux")]
    if let Some(all) = ALL.get() {
        // On failure the thread stays where it is.
        let _ = rustix::thread::sched_setaffinity(None, all);
    }
}

/// Pins the calling thread to the `n`th processor of the process, modulo their number. Does nothing
/// where that is impossible.
#[cfg(target_os = "linux")]
pub(crate) fn to_processor(n: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(mine) = sched_getaffinity(None) else {
        return;
    };
    let allowed = ALL.get_or_init(|| mine);
    let all = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let Some(cpu) = all.cycle().nth(n) else {
        return;
    };
    let mut one = CpuSet::new();
    one.set(cpu);
    // On failure the thread runs anywhere.
    let _ = sched_setaffinity(None, &one);
}

/// Does nothing: this system has no thread affinity.
#[cfg(not(target_os = "linux"))]
pub(crate) fn to_processor(_n: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::sched_getaffinity;

    #[test]
    fn a_pinned_thread_has_one_processor() {
        let count = || sched_getaffinity(None).map(|set| set.count());
        let all = count();
        let counts = std::thread::spawn(move || {
            super::to_processor(5);
            let pinned = count();
            let free = std::thread::spawn(move || {
                super::to_all_processors();
                count()
            });
            (pinned, free.join().unwrap())
        });
        assert_eq!(counts.join().unwrap(), (Ok(1), all));
    }
}
