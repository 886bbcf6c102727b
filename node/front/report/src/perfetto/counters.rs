//! Samples and sums as counters: of hosts, GPUs and fabrics, and how often and how long ranks were
//! in calls, second by second. States that last (a throttled GPU) are slices.

use std::collections::HashMap;
use std::io::{self, Write};

use model::cells::integer_of;
use query_planner::Value;

use super::layout::Layout;
use super::proto::CounterValue;
use super::tables::within;
use super::write::{Arg, Event};

/// A second: the span of a row of `call_rollups`.
const SECOND_NS: i64 = 1_000_000_000;

/// A table of samples.
#[derive(Debug)]
pub struct Samples {
    /// The table.
    pub name: &'static str,
    /// The column of the time.
    pub time: &'static str,
    /// The columns after node and time.
    columns: &'static str,
    /// The columns by which rows are summed; empty: row by row.
    group: &'static str,
    /// Its rows are of processes.
    pub of_processes: bool,
}

/// All of them.
pub const SAMPLES: &[Samples] = &[
    Samples {
        name: "call_rollups",
        time: "bucket_ns",
        columns: "pid, source, sum(count), sum(sum_ns), sum(bytes)",
        group: " GROUP BY node, bucket_ns, pid, source",
        of_processes: true,
    },
    Samples {
        name: "gpu_samples",
        time: "ts_ns",
        columns: "gpu, throttle, sm_clock_mhz, mem_clock_mhz, utilisation_pct, power_mw, temperature_c, memory_used_bytes",
        group: "",
        of_processes: false,
    },
    Samples {
        name: "host_samples",
        time: "ts_ns",
        columns: "cpu_busy_pct, cpu_iowait_pct, steal_pct, memory_available_bytes, psi_cpu_some_us, psi_io_some_us, psi_memory_some_us",
        group: "",
        of_processes: false,
    },
    Samples {
        name: "fabric_counters",
        time: "ts_ns",
        columns: "device, port, counter, delta",
        group: "",
        of_processes: false,
    },
];

/// The columns of `gpu_samples` after the GPU and the reason of its throttling.
const GPU: [(&str, &str); 6] = [
    ("SM clock", "MHz"),
    ("memory clock", "MHz"),
    ("utilisation", "%"),
    ("power", "mW"),
    ("temperature", "°C"),
    ("memory used", "bytes"),
];
/// The columns of `host_samples`.
const HOST: [(&str, &str); 7] = [
    ("CPUs busy", "%"),
    ("CPUs waiting for I/O", "%"),
    ("CPUs stolen", "%"),
    ("memory available", "bytes"),
    ("tasks waiting for a CPU", "µs"),
    ("tasks waiting for I/O", "µs"),
    ("tasks waiting for memory", "µs"),
];

impl Samples {
    /// The question for the rows of a span of each node's own clock.
    #[must_use]
    pub fn select(&self, since_ns: i64, until_ns: i64, pids: Option<&[i64]>) -> String {
        let Self { name, time, columns, group, .. } = self;
        let within = within(time, since_ns, until_ns, pids.filter(|_| self.of_processes));
        format!("SELECT node, {time}, {columns} FROM {name}{within}{group}")
    }
}

/// State from the rows so far.
#[derive(Debug, Default)]
pub struct Counters {
    /// Since when and until when a GPU was throttled, and why.
    throttled_since: HashMap<(String, i64), (String, i64, i64)>,
    /// The last second in which a process was in calls of a source.
    seconds: HashMap<(String, i64, String), i64>,
    /// When a fabric counter was last read.
    read_ns: HashMap<(String, String), i64>,
}

impl Counters {
    /// Rows of one table, of a span that follows those before.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn rows<W: Write>(&mut self, of: &Samples, mut rows: Vec<Vec<Value>>, to: &mut Layout<W>) -> io::Result<()> {
        rows.sort_by_key(|row| row.get(1).and_then(integer_of));
        for row in &rows {
            let [Value::Text(node), Value::Integer(ts_ns), values @ ..] = row.as_slice() else { continue };
            let node = String::from_utf8_lossy(node).into_owned();
            match of.name {
                "call_rollups" => self.calls(&node, *ts_ns, values, to)?,
                "gpu_samples" => self.gpu(&node, *ts_ns, values, to)?,
                "fabric_counters" => self.fabric(&node, *ts_ns, values, to)?,
                _ => {
                    for ((name, unit), value) in HOST.into_iter().zip(values) {
                        put(to, &node, None, (name, unit), *ts_ns, value)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Writes what is still open: nothing follows.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end<W: Write>(self, to: &mut Layout<W>) -> io::Result<()> {
        for ((node, gpu), (why, since_ns, until_ns)) in self.throttled_since {
            throttled(to, &node, gpu, why, (since_ns, until_ns))?;
        }
        for ((node, pid, source), second_ns) in self.seconds {
            no_calls(to, &node, pid, &source, second_ns.saturating_add(SECOND_NS))?;
        }
        Ok(())
    }

    fn calls<W: Write>(&mut self, node: &str, ts_ns: i64, values: &[Value], to: &mut Layout<W>) -> io::Result<()> {
        let [Value::Integer(pid), Value::Text(source), count, time_ns, bytes] = values else { return Ok(()) };
        let source = record::printable(&String::from_utf8_lossy(source));
        let last = self.seconds.insert((node.to_owned(), *pid, source.clone()), ts_ns);
        if let Some(last) = last.filter(|last| last.saturating_add(SECOND_NS) < ts_ns) {
            no_calls(to, node, *pid, &source, last + SECOND_NS)?;
        }
        let pid = Some(*pid);
        put(to, node, pid, (&format!("{source}: per second"), "calls"), ts_ns, count)?;
        put(to, node, pid, (&format!("{source}: time in a second"), "ns"), ts_ns, time_ns)?;
        put(to, node, pid, (&format!("{source}: bytes per second"), "bytes"), ts_ns, bytes)
    }

    fn gpu<W: Write>(&mut self, node: &str, ts_ns: i64, values: &[Value], to: &mut Layout<W>) -> io::Result<()> {
        let [Value::Integer(gpu), throttle, values @ ..] = values else { return Ok(()) };
        for ((name, unit), value) in GPU.into_iter().zip(values) {
            put(to, node, None, (&format!("GPU {gpu} {name}"), unit), ts_ns, value)?;
        }
        let why = match throttle {
            Value::Text(why) => record::printable(&String::from_utf8_lossy(why)),
            _ => String::new(),
        };
        let key = (node.to_owned(), *gpu);
        match self.throttled_since.get_mut(&key) {
            Some((reason, _, until_ns)) if *reason == why => *until_ns = ts_ns,
            _ => {
                if let Some((reason, since_ns, _)) = self.throttled_since.remove(&key) {
                    throttled(to, node, *gpu, reason, (since_ns, ts_ns))?;
                }
                if !why.is_empty() {
                    self.throttled_since.insert(key, (why, ts_ns, ts_ns));
                }
            }
        }
        Ok(())
    }

    fn fabric<W: Write>(&mut self, node: &str, ts_ns: i64, values: &[Value], to: &mut Layout<W>) -> io::Result<()> {
        let [Value::Text(device), port, Value::Text(counter), delta] = values else { return Ok(()) };
        let text = |bytes: &[u8]| record::printable(&String::from_utf8_lossy(bytes));
        let port = integer_of(port).map(|port| format!(" port {port}")).unwrap_or_default();
        let name = format!("{}{port} {}", text(device), text(counter));
        let last = self.read_ns.insert((node.to_owned(), name.clone()), ts_ns);
        let (Some(last), Some(delta)) = (last.filter(|last| *last < ts_ns), integer_of(delta)) else { return Ok(()) };
        let rate = delta as f64 * 1e9 / ts_ns.saturating_sub(last) as f64;
        to.value(node, None, (&name, "per second"), ts_ns, CounterValue::Double(rate))
    }
}

fn no_calls<W: Write>(to: &mut Layout<W>, node: &str, pid: i64, source: &str, ts_ns: i64) -> io::Result<()> {
    for (what, unit) in [("per second", "calls"), ("time in a second", "ns")] {
        put(to, node, Some(pid), (&format!("{source}: {what}"), unit), ts_ns, &Value::Integer(0))?;
    }
    Ok(())
}

fn throttled<W: Write>(to: &mut Layout<W>, node: &str, gpu: i64, why: String, span: (i64, i64)) -> io::Result<()> {
    let args = vec![("gpu", Arg::Int(gpu))];
    let event = Event { name: why, category: "gpu_samples", args, flow: None };
    to.state(node, &format!("GPU {gpu} held down"), span, event)
}

fn put<W: Write>(
    to: &mut Layout<W>,
    node: &str,
    pid: Option<i64>,
    what: (&str, &str),
    ts_ns: i64,
    value: &Value,
) -> io::Result<()> {
    match value {
        Value::Integer(int) => to.value(node, pid, what, ts_ns, CounterValue::Integer(*int)),
        Value::Real(real) => to.value(node, pid, what, ts_ns, CounterValue::Double(*real)),
        _ => Ok(()),
    }
}
