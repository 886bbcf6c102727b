//! A node's facts and their encoding as gossip keys.
//!
//! The facts travel as a few string keys, so that a change ships only its own key: [`KEY_NODE`]
//! holds what seldom changes, [`KEY_STORE`] what changes with the store, and each entry of `extra`
//! has a key of its own. Values are JSON objects with short field names. Reading is lenient field
//! by field: a field that is unknown, missing or of another type costs that field only, so nodes of
//! neighbouring versions can share a mesh.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::Error;
use crate::cells::card::MAX_FACTS_BYTES;
use crate::intake::KEY_BYTES;

/// The most ranks a node can claim: bounds what a peer can make us allocate.
pub const MAX_RANKS: usize = 65_536;

/// Largest value under one key, bytes. The protocol's strings end at 65,535 bytes; a value that
/// large would push everything else out of a message.
const MAX_VALUE_BYTES: usize = 8 * 1024;

/// In `extra` of a node of another cell: its labels were too long to be told.
pub const CUT: &str = "labels cut";
/// In `extra` of a node of another cell: that cell runs more jobs than it names to others.
pub const JOBS_CUT: &str = "jobs cut";
/// Of a long state of capture so much is told to other cells; ranks only up to so much.
const CAPTURE_CHARS: usize = 64;

const KEY_NODE: &str = "n";
const KEY_STORE: &str = "s";
/// Prefix of the keys of `extra`.
const PREFIX_EXTRA: &str = "x.";
/// Set by a node that leaves in good order.
pub(crate) const KEY_LEFT: &str = "left";

/// What a node publishes about itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeFacts {
    /// Where to ask the node, when that differs from where it gossips.
    pub address: Option<SocketAddr>,
    /// Labels given by its operator (job, cluster, rack, …).
    pub labels: BTreeMap<String, String>,
    /// Ranks that run on the node, ascending, each once.
    pub ranks: Vec<u32>,
    /// First and last instant its store has rows for, Unix nanoseconds of the node's own clock.
    pub store_span_ns: Option<(i64, i64)>,
    /// Rows in its store.
    pub store_rows: u64,
    /// Version of its agent.
    pub version: String,
    /// Hash of its table catalogue: nodes with equal hashes have equal tables.
    pub schema_hash: u64,
    /// State of its capture: "on", "off" or "failed: why".
    pub capture: String,
    /// Short values that other parts of the agent publish (clock offsets, standing verdicts), by
    /// name.
    pub extra: BTreeMap<String, String>,
}

impl NodeFacts {
    /// The gossip keys and values of these facts.
    pub(crate) fn encode(&self) -> Result<Vec<(String, String)>, Error> {
        let node = json!({
            "a": self.address,
            "l": self.labels,
            "v": self.version,
            "h": self.schema_hash,
            "c": self.capture,
        });
        let store = json!({
            "r": ranges_of(&self.ranks),
            "t": self.store_span_ns,
            "n": self.store_rows,
        });
        let mut keys = vec![(KEY_NODE.to_owned(), node.to_string()), (KEY_STORE.to_owned(), store.to_string())];
        keys.extend(self.extra.iter().map(|(name, value)| (extra_key(name), value.clone())));
        for (key, value) in &keys {
            let bytes = key.len() + value.len();
            if bytes > MAX_VALUE_BYTES {
                let what = match key.as_str() {
                    KEY_NODE => "labels".to_owned(),
                    KEY_STORE => "ranks".to_owned(),
                    other => format!("facts under {other:?}"),
                };
                return Err(Error::FactsTooLarge { what, bytes, limit: MAX_VALUE_BYTES });
            }
        }
        Ok(keys)
    }

    /// What is told to all cells: that of [`KEY_NODE`], and these of `extra`. The second is false
    /// where that was too long, and labels are left out.
    pub(crate) fn for_all(&self, told: &[&str]) -> (String, bool) {
        let extra: BTreeMap<&str, &String> = self
            .extra
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .filter(|(name, _)| told.contains(name))
            .collect();
        let ranks = Some(ranges_of(&self.ranks)).filter(|ranks| ranks.len() <= CAPTURE_CHARS);
        let text = |labels: &BTreeMap<String, String>, capture: &str, cut: bool| {
            json!({
                "r": ranks,
                "a": self.address,
                "l": labels,
                "v": self.version,
                "h": self.schema_hash,
                "c": capture,
                "x": extra,
                "cut": cut,
            })
            .to_string()
        };
        let all = text(&self.labels, &self.capture, false);
        if all.len() <= MAX_FACTS_BYTES {
            return (all, true);
        }
        let capture: String = self.capture.chars().take(CAPTURE_CHARS).collect();
        let shorter = text(&self.labels, &capture, false);
        if shorter.len() <= MAX_FACTS_BYTES {
            return (shorter, true);
        }
        (text(&BTreeMap::new(), &capture, true), false)
    }

    /// Reads what [`NodeFacts::for_all`] wrote.
    pub(crate) fn read_for_all(text: &str) -> Self {
        let mut facts = Self::decode([(KEY_NODE, text)].into_iter());
        let fields = object(text);
        facts.ranks = ranks_of(&field::<String>(&fields, "r")).unwrap_or_default();
        facts.extra = field(&fields, "x");
        if field(&fields, "cut") {
            facts.extra.insert(CUT.to_owned(), "1".to_owned());
        }
        facts
    }

    /// Reads facts from gossip keys; what cannot be read stays at its default.
    pub(crate) fn decode<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let mut facts = Self::default();
        for (key, value) in keys {
            match key {
                KEY_NODE => {
                    let fields = object(value);
                    facts.address = field(&fields, "a");
                    facts.labels = field(&fields, "l");
                    facts.version = field(&fields, "v");
                    facts.schema_hash = field(&fields, "h");
                    facts.capture = field(&fields, "c");
                }
                KEY_STORE => {
                    let fields = object(value);
                    facts.ranks = ranks_of(&field::<String>(&fields, "r")).unwrap_or_default();
                    facts.store_span_ns = field(&fields, "t");
                    facts.store_rows = field(&fields, "n");
                }
                other => {
                    if let Some(name) = other.strip_prefix(PREFIX_EXTRA) {
                        facts.extra.insert(name.to_owned(), value.to_owned());
                    }
                }
            }
        }
        facts
    }
}

/// All of a node's keys are sent in one message of 65,507 bytes when another meets it, packed in
/// blocks. So much always fits, so much may when it packs well, and so much must then be left.
const SURELY_FIT_BYTES: usize = 40_000;
const MAX_TOTAL_BYTES: usize = 100_000;
const PACKED_BYTES: usize = 44_000;
const PACKED_BLOCK_BYTES: usize = 16_384;

/// Whether all of a node's keys fit into one message, beside so many bytes that may come to them.
///
/// # Errors
/// [`Error::FactsTooLarge`].
pub(crate) fn check_total(keys: &[(String, String)], room: usize) -> Result<(), Error> {
    let bytes: usize = room + keys.iter().map(|(key, value)| key.len() + value.len() + KEY_BYTES).sum::<usize>();
    let too_large = |limit| Error::FactsTooLarge { what: "facts".to_owned(), bytes, limit };
    if bytes <= SURELY_FIT_BYTES {
        return Ok(());
    }
    if bytes > MAX_TOTAL_BYTES {
        return Err(too_large(MAX_TOTAL_BYTES));
    }
    let all: String = keys.iter().flat_map(|(key, value)| [key.as_str(), value.as_str()]).collect();
    let packed = |block: &[u8]| zstd::bulk::compress(block, 0).map_or(block.len(), |packed| packed.len());
    let packed: usize = all.as_bytes().chunks(PACKED_BLOCK_BYTES).map(packed).sum();
    if room + packed <= PACKED_BYTES { Ok(()) } else { Err(too_large(SURELY_FIT_BYTES)) }
}

/// The key of an entry of `extra`.
fn extra_key(name: &str) -> String {
    format!("{PREFIX_EXTRA}{name}")
}

fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

fn field<T: DeserializeOwned + Default>(fields: &Map<String, Value>, name: &str) -> T {
    fields.get(name).and_then(|v| serde_json::from_value(v.clone()).ok()).unwrap_or_default()
}

/// Ranks as ranges: `0-7,16`.
fn ranges_of(ranks: &[u32]) -> String {
    let mut sorted: Vec<u32> = ranks.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut text = String::new();
    let mut at = 0;
    while at < sorted.len() {
        let mut end = at;
        while end + 1 < sorted.len() && sorted[end + 1] - sorted[end] == 1 {
            end += 1;
        }
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(&sorted[at].to_string());
        if end > at {
            text.push('-');
            text.push_str(&sorted[end].to_string());
        }
        at = end + 1;
    }
    text
}

/// The ranks of [`ranges_of`]'s text; none when it is not such a text or names more than
/// [`MAX_RANKS`].
fn ranks_of(text: &str) -> Option<Vec<u32>> {
    let mut ranks = Vec::new();
    for part in text.split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let count = (last.checked_sub(first)? as usize).checked_add(1)?;
        if ranks.len() + count > MAX_RANKS {
            return None;
        }
        ranks.extend(first..=last);
    }
    ranks.sort_unstable();
    ranks.dedup();
    Some(ranks)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> NodeFacts {
        NodeFacts {
            address: Some(([10, 0, 0, 7], 7117).into()),
            labels: [("job".to_owned(), "4711".to_owned())].into(),
            ranks: vec![0, 1, 2, 3, 9],
            store_span_ns: Some((1_760_000_000_000_000_000, 1_760_000_000_000_000_001)),
            store_rows: 12,
            version: "0.1.0".to_owned(),
            schema_hash: u64::MAX,
            capture: "failed: no BTF".to_owned(),
            extra: [("clock".to_owned(), "a=-12".to_owned())].into(),
        }
    }

    fn decode(keys: &[(String, String)]) -> NodeFacts {
        NodeFacts::decode(keys.iter().map(|(k, v)| (k.as_str(), v.as_str())))
    }

    #[test]
    fn facts_survive_the_way() {
        assert_eq!(decode(&sample().encode().unwrap()), sample());
        assert_eq!(decode(&NodeFacts::default().encode().unwrap()), NodeFacts::default());
    }

    #[test]
    fn a_newer_or_broken_value_costs_only_its_field() {
        let keys = vec![
            ("n".to_owned(), r#"{"a":{"quic":1},"l":{"job":"1"},"v":"9.0","z":[1,2],"h":"text"}"#.to_owned()),
            ("s".to_owned(), "}{".to_owned()),
            ("q".to_owned(), "unknown key".to_owned()),
        ];
        let facts = decode(&keys);
        assert_eq!(facts.address, None);
        assert_eq!(facts.labels["job"], "1");
        assert_eq!(facts.version, "9.0");
        assert_eq!(facts.schema_hash, 0);
        assert_eq!(facts.store_rows, 0);
    }

    #[test]
    fn a_claim_of_all_ranks_is_not_believed() {
        assert_eq!(ranks_of("0-4294967295"), None);
        assert_eq!(ranks_of("5-2"), None);
        assert_eq!(ranks_of("0-65535").map(|r| r.len()), Some(MAX_RANKS));
        assert_eq!(ranks_of("0-65535,70000"), None);
    }

    #[test]
    fn ranks_are_compact() {
        assert_eq!(ranges_of(&[3, 0, 1, 2, 2, 9, 11, 12]), "0-3,9,11-12");
        assert_eq!(ranges_of(&[]), "");
    }

    #[test]
    fn too_many_labels_are_refused_with_their_size() {
        let mut facts = sample();
        facts.labels.insert("big".to_owned(), "x".repeat(MAX_VALUE_BYTES));
        let message = facts.encode().unwrap_err().to_string();
        assert!(message.contains("labels"), "{message}");
    }

    proptest! {
        #[test]
        fn any_set_of_ranks_comes_back(set in proptest::collection::btree_set(any::<u32>(), 0..200)) {
            let ranks: Vec<u32> = set.into_iter().collect();
            prop_assert_eq!(ranks_of(&ranges_of(&ranks)), Some(ranks));
        }

        #[test]
        fn no_value_breaks_the_reader(key in "[ns]|x\\..{0,3}|.{0,4}", value in ".{0,80}") {
            let facts = NodeFacts::decode([(key.as_str(), value.as_str())].into_iter());
            prop_assert!(facts.ranks.len() <= MAX_RANKS);
        }
    }
}
