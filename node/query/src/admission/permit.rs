//! Permits to work, and permits that are suspended while work only waits for others.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::queue::Units;
use super::{Admission, Requester};

/// Weight of the newest permit in the mean time that they last.
const NEWEST: f64 = 0.2;

/// A permit; it ends when dropped.
#[derive(Debug)]
pub struct Permit {
    admission: Arc<Admission>,
    requester: Requester,
    cost: u32,
    began: Instant,
    _units: Units,
}

impl Permit {
    pub(super) fn new(admission: &Arc<Admission>, requester: &Requester, cost: u32, units: Units) -> Self {
        let (admission, requester) = (Arc::clone(admission), requester.clone());
        Self { admission, requester, cost: cost.max(1), began: Instant::now(), _units: units }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let took = self.began.elapsed().as_nanos() as f64 / f64::from(self.cost);
        let mean = self.admission.mean_ns.load(Ordering::Relaxed) as f64;
        self.admission.mean_ns.store((mean + NEWEST * (took - mean)) as u64, Ordering::Relaxed);
    }
}

/// The permit of work on a thread that may block. It ends when dropped.
#[derive(Debug)]
pub(crate) struct SuspendablePermit {
    runtime: Handle,
    admission: Arc<Admission>,
    requester: Requester,
    cost: u32,
    permit: Option<Permit>,
    suspended: Option<OwnedSemaphorePermit>,
    /// The work was stopped; it no longer waits for a permit.
    cancelled: CancellationToken,
}

impl SuspendablePermit {
    pub(crate) fn new(permit: Permit, runtime: Handle, cancelled: CancellationToken) -> Self {
        let (admission, requester, cost) = (Arc::clone(&permit.admission), permit.requester.clone(), permit.cost);
        Self { runtime, admission, requester, cost, permit: Some(permit), suspended: None, cancelled }
    }

    /// Gives the permit to others meanwhile, unless so much work is suspended already that this one
    /// keeps it.
    pub(crate) fn suspend(&mut self) {
        if self.permit.is_some()
            && let Ok(suspended) = Arc::clone(&self.admission.suspended).try_acquire_owned()
        {
            (self.permit, self.suspended) = (None, Some(suspended));
        }
    }

    /// Waits for a permit again, which is not refused; false when there was none until then, or the
    /// work was cancelled.
    pub(crate) fn resume(&mut self, until: Instant) -> bool {
        if self.permit.is_none() {
            let units = self.admission.queue.take_again(&self.requester, self.cost);
            // A timer needs the runtime around it, which this thread has only in here.
            let units = self.runtime.block_on(async {
                tokio::select! {
                    units = tokio::time::timeout_at(until.into(), units) => units.ok(),
                    () = self.cancelled.cancelled() => None,
                }
            });
            let Some(units) = units else { return false };
            let permit = Permit::new(&self.admission, &self.requester, self.cost, units);
            (self.permit, self.suspended) = (Some(permit), None);
        }
        true
    }

    /// Waits for something; after `patience` without a permit.
    pub(crate) fn wait_for<T>(&mut self, patience: Duration, what: impl Future<Output = T>) -> T {
        let mut what = std::pin::pin!(what);
        let soon = self.runtime.block_on(async { tokio::time::timeout(patience, what.as_mut()).await });
        soon.unwrap_or_else(|_| {
            self.suspend();
            self.runtime.block_on(what)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::LIMITS;
    use super::*;

    #[test]
    fn work_that_only_waits_gives_its_permit_up_and_takes_it_again() {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let admission = Admission::new(LIMITS);
        let enter = |name| admission.try_enter(&Requester::trusted(name), 1).expect("room");
        let stop = CancellationToken::new();
        let permit = |name| SuspendablePermit::new(enter(name), runtime.handle().clone(), stop.clone());
        let (mut first, mut second) = (permit("a"), permit("b"));
        assert_eq!(admission.used(), 2);
        first.suspend();
        second.suspend();
        assert_eq!(admission.used(), 1, "one may be suspended, the other keeps its permit");
        let third = enter("c");
        let soon = || Instant::now() + Duration::from_millis(20);
        assert!(!first.resume(soon()) && second.resume(soon()));
        drop(third);
        assert!(first.resume(Instant::now() + Duration::from_secs(60)));
        second.suspend();
        assert_eq!(admission.used(), 1, "there is room again");
        // What is there soon is waited for with the permit.
        assert_eq!(first.wait_for(Duration::from_secs(60), std::future::ready(7)), 7);
        assert_eq!(admission.used(), 1);
        // What is cancelled waits for none.
        drop(second);
        first.suspend();
        let others = (enter("c"), enter("d"));
        stop.cancel();
        assert!(!first.resume(Instant::now() + Duration::from_secs(60)));
        drop((first, others));
        assert_eq!((admission.used(), admission.suspended.available_permits()), (0, 1));
    }
}
