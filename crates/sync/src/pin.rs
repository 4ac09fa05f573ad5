//! Threads that stay on one processor.

/// Binds the calling thread to one of the processors that the process may use: the `n`th, from the
/// start again behind the last. Where that is impossible, nothing happens.
#[cfg(target_os = "linux")]
pub(crate) fn to_processor(n: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
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
        let n = std::thread::spawn(|| {
            super::to_processor(5);
            sched_getaffinity(None).map(|set| set.count())
        });
        assert_eq!(n.join().unwrap(), Ok(1));
    }
}
