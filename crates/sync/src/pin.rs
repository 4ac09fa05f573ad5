//! Threads that stay on one processor.

/// What threads that are not pinned may use, once one is: who starts a thread gives it its own.
#[cfg(target_os = "linux")]
static ALL: std::sync::OnceLock<rustix::thread::CpuSet> = std::sync::OnceLock::new();

/// Lets the calling thread, whoever started it, run on all processors of the process.
pub(crate) fn to_all_processors() {
    #[cfg(target_os = "linux")]
    if let Some(all) = ALL.get() {
        // It stays where it is then.
        let _ = rustix::thread::sched_setaffinity(None, all);
    }
}

/// Binds the calling thread to one of the processors that the process may use: the `n`th, from the
/// start again behind the last. Where that is impossible, nothing happens.
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
    // The thread runs anywhere then.
    let _ = sched_setaffinity(None, &one);
}

/// Binds the calling thread to a processor, where the system knows how; here it does not.
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
