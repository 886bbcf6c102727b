//! Counters of InfiniBand and RoCE ports, from /sys/class/infiniband (kernel:
//! Documentation/ABI/stable/ sysfs-class-infiniband): `DEVICE/ports/N/{counters,hw_counters}/*`,
//! `DEVICE/hw_counters/*`, and the port's state. A counter makes a row at the first look and
//! whenever it has changed; those that change with all traffic are read rarely, so that a busy port
//! does not fill the store.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use record::FabricCounter;

/// Device, port, counter.
type Key = (String, Option<u32>, String);

/// Keeps the last values.
#[derive(Debug)]
pub(super) struct FabricSampler {
    root: PathBuf,
    last: HashMap<Key, u64>,
}

/// Moved by traffic itself.
fn is_traffic(counter: &str) -> bool {
    ["_data", "_packets", "_requests", "_bytes", "_pkts"].iter().any(|ending| counter.ends_with(ending))
}

/// Files in a directory of counters that are settings.
const SETTINGS: &[&str] = &["lifespan"];

impl FabricSampler {
    pub(super) fn new(sysfs: &Path) -> Self {
        FabricSampler { root: sysfs.join("class/infiniband"), last: HashMap::new() }
    }

    /// The counters that have changed; those of traffic only in the rare reads.
    pub(super) fn look(&mut self, ts_ns: i64, traffic: bool) -> Vec<FabricCounter> {
        let mut rows = vec![];
        for device in names(&self.root) {
            let at = self.root.join(&device);
            self.directory(&at.join("hw_counters"), (&device, None), ts_ns, traffic, &mut rows);
            for port in names(&at.join("ports")) {
                let Ok(number) = port.parse::<u32>() else { continue };
                let at = at.join("ports").join(&port);
                for kind in ["counters", "hw_counters"] {
                    self.directory(&at.join(kind), (&device, Some(number)), ts_ns, traffic, &mut rows);
                }
                // "4: ACTIVE"
                let state = fs::read_to_string(at.join("state")).unwrap_or_default();
                if let Some(value) = state.split(':').next().and_then(|number| number.trim().parse().ok()) {
                    self.value((device.clone(), Some(number), "state".to_owned()), value, ts_ns, &mut rows);
                }
            }
        }
        rows
    }

    fn directory(
        &mut self,
        directory: &Path,
        (device, port): (&str, Option<u32>),
        ts_ns: i64,
        traffic: bool,
        rows: &mut Vec<FabricCounter>,
    ) {
        for counter in names(directory) {
            let key = (device.to_owned(), port, counter);
            let due = traffic || !is_traffic(&key.2) || !self.last.contains_key(&key);
            if !due || SETTINGS.contains(&key.2.as_str()) {
                continue;
            }
            // some contain text where a device cannot count ("N/A (no PMA)"), some cannot be read
            // at all
            let text = fs::read_to_string(directory.join(&key.2)).unwrap_or_default();
            if let Ok(value) = text.trim().parse() {
                self.value(key, value, ts_ns, rows);
            }
        }
    }

    fn value(&mut self, key: Key, value: u64, ts_ns: i64, rows: &mut Vec<FabricCounter>) {
        let before = self.last.insert(key.clone(), value);
        if before == Some(value) {
            return;
        }
        let (device, port, counter) = key;
        // one that went back was reset, by a driver or an administrator
        let delta = before.and_then(|before| value.checked_sub(before));
        rows.push(FabricCounter { ts_ns, device, port, counter, value, delta });
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return vec![] };
    let mut names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_make_rows_when_they_change() {
        let dir = tempfile::tempdir().unwrap();
        let port = dir.path().join("class/infiniband/mlx5_0/ports/1");
        let write = |name: &str, text: &str| {
            let path = port.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("counters/symbol_error", "3\n");
        write("counters/port_xmit_data", "1000\n");
        write("counters/VL15_dropped", "N/A (no PMA)\n");
        write("hw_counters/out_of_sequence", "7\n");
        write("hw_counters/lifespan", "10\n");
        write("state", "4: ACTIVE\n");
        let mut sampler = FabricSampler::new(dir.path());
        let seen = |rows: Vec<FabricCounter>| -> Vec<(String, u64, Option<u64>)> {
            assert!(rows.iter().all(|r| r.device == "mlx5_0" && r.port == Some(1)));
            rows.into_iter().map(|r| (r.counter, r.value, r.delta)).collect()
        };
        let first = seen(sampler.look(1, false));
        let want = [("port_xmit_data", 1000), ("symbol_error", 3), ("out_of_sequence", 7), ("state", 4)];
        assert_eq!(first, want.map(|(name, value)| (name.to_owned(), value, None)));
        assert_eq!(seen(sampler.look(2, true)), []);
        write("counters/symbol_error", "5\n");
        write("counters/port_xmit_data", "1500\n");
        write("state", "1: DOWN\n");
        let changed = seen(sampler.look(3, false));
        assert_eq!(changed, [("symbol_error".to_owned(), 5, Some(2)), ("state".to_owned(), 1, None)]);
        assert_eq!(seen(sampler.look(4, true)), [("port_xmit_data".to_owned(), 1500, Some(500))]);
        write("counters/symbol_error", "0\n");
        assert_eq!(seen(sampler.look(5, false)), [("symbol_error".to_owned(), 0, None)]);
    }

    #[test]
    fn a_host_without_a_fabric_has_no_rows() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(FabricSampler::new(dir.path()).look(1, true), []);
    }
}
