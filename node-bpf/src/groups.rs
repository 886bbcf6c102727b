//! Calls inside ncclGroupStart and ncclGroupEnd: they only record what is wanted, and the end of
//! the outermost group starts all of it. So such a call lasts until that end has returned; its
//! record is kept here until then.

use std::collections::HashMap;

use record::Collective;

/// A process and a thread of it.
pub(crate) type Thread = (u32, u32);

/// Most calls kept for one thread; further ones are delivered with the duration of the call alone.
const MOST_OF_THREAD: usize = 4096;
/// Most threads with an open group.
const MOST_THREADS: usize = 16_384;

/// The calls of open groups.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    open: HashMap<Thread, Vec<Collective>>,
}

impl Groups {
    /// Keeps a call made inside a group; returns it when there is no room.
    pub(crate) fn hold(&mut self, call: Collective) -> Option<Collective> {
        let thread = (call.pid, call.tid);
        if self.open.len() >= MOST_THREADS && !self.open.contains_key(&thread) {
            return Some(call);
        }
        let calls = self.open.entry(thread).or_default();
        if calls.len() >= MOST_OF_THREAD {
            return Some(call);
        }
        calls.push(call);
        None
    }

    /// The thread's outermost group has ended: its calls, lasting until then. `ret` is what
    /// ncclGroupEnd returned: a failure in it is one of the calls'. None when it never returned:
    /// then none of them did.
    pub(crate) fn end(&mut self, thread: Thread, end_ns: i64, ret: Option<i32>) -> Vec<Collective> {
        let mut calls = self.open.remove(&thread).unwrap_or_default();
        for call in &mut calls {
            last_until(call, end_ns);
            if call.ret == Some(0) {
                call.ret = ret;
            }
        }
        calls
    }

    /// The calls that the thread, which is in ncclGroupEnd now, waits for.
    pub(crate) fn of(&self, thread: Thread, now_ns: i64) -> Vec<Collective> {
        let mut calls = self.open.get(&thread).cloned().unwrap_or_default();
        calls.iter_mut().for_each(|call| last_until(call, now_ns));
        calls
    }

    /// The process is gone: its calls as they were made.
    pub(crate) fn release(&mut self, pid: u32) -> Vec<Collective> {
        self.open.extract_if(|thread, _| thread.0 == pid).flat_map(|(_, calls)| calls).collect()
    }

    /// Capture ends: all calls, as they were made.
    pub(crate) fn release_all(&mut self) -> Vec<Collective> {
        self.open.drain().flat_map(|(_, calls)| calls).collect()
    }
}

fn last_until(call: &mut Collective, end_ns: i64) {
    call.duration_ns = end_ns.saturating_sub(call.ts_ns).max(call.duration_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(pid: u32, tid: u32, ts_ns: i64) -> Collective {
        Collective {
            ts_ns,
            duration_ns: 10,
            pid,
            tid,
            rank: Some(0),
            nranks: Some(2),
            comm_hash: Some(1),
            func: "send",
            seq: Some(0),
            ret: Some(0),
            cgroup_id: 1,
            ..Collective::default()
        }
    }

    #[test]
    fn calls_last_until_their_own_threads_group_ends() {
        let mut groups = Groups::default();
        assert_eq!(groups.hold(call(1, 1, 100)), None);
        assert_eq!(groups.hold(call(1, 1, 120)), None);
        assert_eq!(groups.hold(call(1, 2, 130)), None);
        assert_eq!(groups.of((1, 1), 150).iter().map(|c| c.duration_ns).collect::<Vec<_>>(), [50, 30]);
        let ended = groups.end((1, 1), 200, Some(0));
        assert_eq!(
            ended.iter().map(|c| (c.ts_ns, c.duration_ns, c.ret)).collect::<Vec<_>>(),
            [(100, 100, Some(0)), (120, 80, Some(0))]
        );
        assert_eq!(groups.end((1, 1), 300, Some(0)), []);
        assert_eq!(groups.end((1, 2), 90, Some(5))[0].ret, Some(5));
        groups.hold(call(1, 3, 10));
        assert_eq!(groups.end((1, 3), 90, None)[0].ret, None, "it ended with its thread");
    }

    #[test]
    fn nothing_is_kept_for_good() {
        let mut groups = Groups::default();
        for _ in 0..MOST_OF_THREAD {
            assert_eq!(groups.hold(call(1, 1, 0)), None);
        }
        assert!(groups.hold(call(1, 1, 0)).is_some());
        assert_eq!(groups.hold(call(2, 2, 0)), None);
        assert_eq!(groups.release(1).len(), MOST_OF_THREAD);
        assert_eq!((groups.release_all().len(), groups.release_all().len()), (1, 0));
    }
}
