//! The recorded form of the demo: the collectives that a live run of this demo stored, one line a
//! call.
//!
//! `recording.csv` was written by `rankmesh demo --record DIR`. Times are relative to the first
//! call; a replay puts the last call to just before now, so that questions about the last minute
//! find it.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use node_bpf::{Collective, Record};
use serde::{Deserialize, Serialize};
use store::{ServedDb, Store, StoreConfig};

use super::lab::Lab;

const RECORDING: &str = include_str!("recording.csv");

/// One call of the recording. All calls of the demo are `all_reduce` of float32 with sum.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    node: String,
    ts_ns: i64,
    duration_ns: i64,
    pid: u32,
    tid: u32,
    rank: i32,
    local_rank: Option<i32>,
    nranks: i32,
    comm_hash: i64,
    seq: i64,
    count: i64,
    bytes: i64,
    stream: i64,
    tier: u8,
    ret: i32,
}

const COLUMNS: &str = "ts_ns, duration_ns, pid, tid, rank, local_rank, nranks, comm_hash, seq, count, bytes, coalesce(stream, 0), tier, ret";
const THE_CALLS: &str = "library = 'nccl' AND func = 'all_reduce' AND datatype = 'float32' AND reduce_op = 'sum' AND duration_ns IS NOT NULL";

/// Writes the collectives of a live run's stores into `dir/recording.csv`.
pub(super) fn save(lab: &Lab, agents: &[&str], dir: &Path) -> anyhow::Result<()> {
    let mut lines = Vec::new();
    for agent in agents {
        let store = ServedDb::open(lab.store(agent), Vec::new())?.reader()?;
        let mut statement = store.prepare(&format!("SELECT {COLUMNS} FROM collectives WHERE {THE_CALLS}"))?;
        let rows = statement.query_map([], |row| {
            Ok(Line {
                node: (*agent).to_owned(),
                ts_ns: row.get(0)?,
                duration_ns: row.get(1)?,
                pid: row.get(2)?,
                tid: row.get(3)?,
                rank: row.get(4)?,
                local_rank: row.get(5)?,
                nranks: row.get(6)?,
                comm_hash: row.get(7)?,
                seq: row.get(8)?,
                count: row.get(9)?,
                bytes: row.get(10)?,
                stream: row.get(11)?,
                tier: row.get(12)?,
                ret: row.get(13)?,
            })
        })?;
        lines.extend(rows.collect::<Result<Vec<_>, _>>()?);
    }
    lines.sort_by_key(|line| (line.ts_ns, line.rank));
    let first = lines.first().context("the run stored no collectives")?.ts_ns;
    let path = dir.join("recording.csv");
    let mut writer = csv::Writer::from_path(&path).with_context(|| format!("writing {}", path.display()))?;
    for mut line in lines {
        line.ts_ns -= first;
        writer.serialize(line)?;
    }
    writer.flush()?;
    Ok(())
}

/// Fills the agents' stores with the recording, its last call ending half a second ago.
pub(super) fn fill_stores(lab: &Lab, agents: &[&str]) -> anyhow::Result<()> {
    let lines: Vec<Line> = csv::Reader::from_reader(RECORDING.as_bytes())
        .deserialize()
        .collect::<Result<_, _>>()
        .context("the recording")?;
    let end = lines.iter().map(|line| line.ts_ns + line.duration_ns).max().context("the recording is empty")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let shift = i64::try_from(now.saturating_sub(Duration::from_millis(500)).as_nanos())? - end;
    for agent in agents {
        let store = Store::open(lab.store(agent), StoreConfig::default())?;
        let ingest = store.ingest();
        let mut stored = 0;
        for line in lines.iter().filter(|line| line.node == *agent) {
            ingest.record(Record::Collective(line.record(shift)));
            stored += 1;
        }
        ensure!(stored > 0, "the recording has no calls of {agent}");
        store.flush(Duration::from_secs(30))?;
        store.close();
    }
    Ok(())
}

impl Line {
    fn record(&self, shift: i64) -> Collective {
        Collective {
            ts_ns: self.ts_ns + shift,
            duration_ns: self.duration_ns,
            pid: self.pid,
            tid: self.tid,
            rank: Some(self.rank),
            local_rank: self.local_rank,
            nranks: Some(self.nranks),
            comm_hash: Some(self.comm_hash.cast_unsigned()),
            func: "all_reduce",
            seq: Some(self.seq.cast_unsigned()),
            comm_seq: Some(self.seq.cast_unsigned()),
            count: Some(self.count.cast_unsigned()),
            datatype: Some("float32"),
            bytes: Some(self.bytes.cast_unsigned()),
            reduce_op: Some("sum"),
            stream: Some(self.stream.cast_unsigned()),
            tier: self.tier,
            ret: Some(self.ret),
            ..Collective::default()
        }
    }
}
