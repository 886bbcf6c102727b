//! Samples of the host, once a second: CPU, memory and pressure (`host`), the ports of the fabric
//! (`fabric`), GPUs (`gpu`); and the resources of the agent itself (`own`). Needs no privileges and
//! no BPF. `capture` records the ranks.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::Error;
use record::Record;
use record::{HostRecord, SelfStat};

mod fabric;
mod gpu;
mod host;
mod own;

pub use own::ProcessUse;

/// Where to look, and how often.
#[derive(Debug, Clone)]
pub struct SamplerConfig {
    /// Mount point of sysfs.
    pub sysfs: PathBuf,
    /// Mount point of procfs.
    pub procfs: PathBuf,
    /// NVML's library; none lets the dynamic loader find libnvidia-ml.so.1.
    pub nvml: Option<PathBuf>,
    /// Between two samples.
    pub every: Duration,
    /// Time between two looks at the agent itself, and at counters that change with all traffic.
    pub rarely: Duration,
}

impl Default for SamplerConfig {
    fn default() -> Self {
        SamplerConfig {
            sysfs: "/sys".into(),
            procfs: "/proc".into(),
            nvml: None,
            every: Duration::from_secs(1),
            rarely: Duration::from_secs(10),
        }
    }
}

/// Called with every sample: gets the time and whether rarely read values are due, and returns
/// statistics of the agent.
pub type Watch = Box<dyn FnMut(i64, bool) -> Vec<SelfStat> + Send>;

/// Running sampler. Stops when dropped.
#[derive(Debug)]
pub struct Sampler {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts sampling into `sink`, from a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started. What the host does not have is simply not sampled.
    pub fn start(
        config: SamplerConfig,
        mut watch: Watch,
        mut sink: Box<dyn FnMut(Record) + Send>,
    ) -> Result<Sampler, Error> {
        let (stop, stopped) = mpsc::channel::<()>();
        let run = move || {
            let mut host = host::HostSampler::new(&config.procfs);
            let mut fabric = fabric::FabricSampler::new(&config.sysfs);
            let mut gpus = gpu::GpuSampler::new(config.nvml.as_deref());
            let mut own = own::OwnUse::new(&config.procfs);
            let mut next_rarely = Instant::now();
            loop {
                let began = Instant::now();
                let ts_ns = clock::unix_now_ns();
                let rarely = began >= next_rarely;
                if rarely {
                    next_rarely = began + config.rarely;
                }
                sink(Record::Host(HostRecord::Host(host.sample(ts_ns))));
                let counters = fabric.look(ts_ns, rarely).into_iter().map(HostRecord::Fabric);
                let gpus = gpus.sample(ts_ns).into_iter().map(HostRecord::Gpu);
                let used = if rarely { own.look(ts_ns) } else { vec![] };
                let seen = used.into_iter().chain(watch(ts_ns, rarely)).map(HostRecord::SelfStat);
                counters.chain(gpus).chain(seen).for_each(|record| sink(Record::Host(record)));
                let wait = config.every.saturating_sub(began.elapsed());
                if stopped.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        let thread = thread::Builder::new()
            .name("samples".to_owned())
            .spawn(run)
            .map_err(|source| Error::Os { doing: "starting the sampling thread", source })?;
        Ok(Sampler { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // a panic in it was reported when it happened
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn this_host_is_sampled_until_it_is_stopped() {
        let seen = Arc::new(Mutex::new(vec![]));
        let sink = Arc::clone(&seen);
        let config = SamplerConfig { every: Duration::from_millis(5), ..SamplerConfig::default() };
        let watch: Watch = Box::new(|ts_ns, rarely| {
            let stat = || SelfStat { ts_ns, name: "queue.records".to_owned(), value: 3.0, unit: "count" };
            if rarely { vec![stat()] } else { vec![] }
        });
        let sampler = Sampler::start(config, watch, Box::new(move |record| sink.lock().unwrap().push(record))).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        let hosts =
            |records: &[Record]| records.iter().filter(|r| matches!(r, Record::Host(HostRecord::Host(_)))).count();
        while hosts(&seen.lock().unwrap()) < 3 {
            assert!(Instant::now() < deadline);
            thread::yield_now();
        }
        drop(sampler);
        let records = seen.lock().unwrap();
        let last =
            records.iter().rev().find_map(|r| if let Record::Host(HostRecord::Host(h)) = r { Some(h) } else { None });
        let last = last.unwrap();
        assert!(last.memory_total_bytes > last.memory_available_bytes && last.load_1m.is_some(), "{last:?}");
        let own: Vec<&str> = records
            .iter()
            .filter_map(|r| if let Record::Host(HostRecord::SelfStat(s)) = r { Some(s.name.as_str()) } else { None })
            .collect();
        for name in ["agent.cpu", "agent.rss", "queue.records"] {
            assert_eq!(own.iter().filter(|n| **n == name).count(), 1, "{name} in {own:?}");
        }
    }
}
