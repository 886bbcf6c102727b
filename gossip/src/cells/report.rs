//! What a delegate says of its own cell: who is in it (by the hash of its roll), who of them lives,
//! and sums of what they tell within the cell.

use serde::{Deserialize, Serialize};

use super::bytes::encoded;
use super::card::{MAX_ROLL, MAX_SEAL_BYTES};
use super::cell::{CellId, hash_of, name_hash};
use crate::seal::Sealing;

/// Jobs that a report names with their hosts; of more it says how many. At most some 13 KB, 5 where
/// each has a host or two.
pub(crate) const MAX_JOBS: usize = 256;
/// Hosts of a job that are named one by one.
const FEW: usize = 8;
const MAX_JOB_BYTES: usize = 64;
const MAX_NAME_BYTES: usize = 64;
const CONTEXT: &[u8] = b"rankmesh cell report 1\0";

/// Whether this can be told on as the name of a job.
pub(crate) fn is_job(name: &str) -> bool {
    (1..=MAX_JOB_BYTES).contains(&name.len())
}

/// A set of members of a roll, by their positions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Bits(Vec<u8>);

impl Bits {
    pub(crate) fn of(set: impl Iterator<Item = bool>) -> Self {
        let mut bits = Vec::new();
        for (at, is_in) in set.enumerate() {
            if at % 8 == 0 {
                bits.push(0);
            }
            if let (true, Some(last)) = (is_in, bits.last_mut()) {
                *last |= 1 << (at % 8);
            }
        }
        Self(bits)
    }

    pub(crate) fn has(&self, at: usize) -> bool {
        self.0.get(at / 8).is_some_and(|byte| byte & (1 << (at % 8)) != 0)
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        (0..8 * self.0.len()).filter(|at| self.has(*at))
    }

    fn is_sound(&self) -> bool {
        self.0.len() <= MAX_ROLL.div_ceil(8)
    }
}

/// A job's hosts, by their positions in a roll.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Hosts {
    /// Few: each.
    Few(Vec<u16>),
    /// A bit for each member.
    Many(Bits),
}

impl Hosts {
    pub(crate) fn of(set: impl Iterator<Item = bool> + Clone) -> Self {
        let there = set.clone().enumerate().filter(|(_, is_in)| *is_in);
        let few: Vec<u16> = there.take(FEW + 1).filter_map(|(at, _)| u16::try_from(at).ok()).collect();
        if few.len() <= FEW { Self::Few(few) } else { Self::Many(Bits::of(set)) }
    }

    /// Their positions.
    pub(crate) fn iter(&self) -> Box<dyn Iterator<Item = usize> + '_> {
        match self {
            Self::Few(few) => Box::new(few.iter().map(|at| usize::from(*at))),
            Self::Many(bits) => Box::new(bits.iter()),
        }
    }

    /// Each is named once: it would count twice otherwise.
    fn is_sound(&self) -> bool {
        match self {
            Self::Few(few) => few.len() <= FEW && few.is_sorted_by(|a, b| a < b),
            Self::Many(bits) => bits.is_sound(),
        }
    }
}

/// What the living members of a cell tell, summed up.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Sums {
    /// Rows in their stores.
    pub rows: u64,
    /// First and last instant that any store has rows for, Unix nanoseconds.
    pub span_ns: Option<(i64, i64)>,
    /// A hash of all their catalogues' hashes.
    pub catalogues: u64,
    /// The highest number of a trust list.
    pub trust: u64,
}

/// A report; see the module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) cell: CellId,
    /// The delegate that says so, its incarnation, and the number of its report.
    pub(crate) author: String,
    pub(crate) generation: u64,
    pub(crate) serial: u64,
    /// Where the author is reached.
    pub(crate) address: std::net::SocketAddr,
    pub(crate) roll: u128,
    pub(crate) living: Bits,
    pub(crate) sums: Sums,
    /// Jobs, sorted, with their hosts, and how many more there are.
    pub(crate) jobs: Vec<(String, Hosts)>,
    pub(crate) more_jobs: u32,
    /// What a later version says besides.
    #[serde(skip)]
    pub(crate) later: Vec<u8>,
    /// Of all before, by the author.
    #[serde(skip)]
    pub(crate) seal: String,
}

/// Reports as they are sent: the bytes that are sealed, and the seal.
pub(crate) mod as_sealed {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Report;
    use crate::cells::bytes::read_said;

    pub(crate) fn serialize<S: Serializer>(reports: &[Report], to: S) -> Result<S::Ok, S::Error> {
        reports.iter().map(|report| (report.said(), &report.seal)).collect::<Vec<_>>().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Report>, D::Error> {
        let read = |(said, seal): (Vec<u8>, String)| {
            let (report, later) = read_said::<Report>(&said).ok_or_else(|| D::Error::custom("no report"))?;
            Ok(Report { later, seal, ..report })
        };
        Vec::deserialize(from)?.into_iter().map(read).collect()
    }
}

impl Report {
    pub(crate) fn sealed(mut self, sealing: &Sealing) -> Self {
        self.seal = sealing.word(&self.statement()).unwrap_or_default();
        self
    }

    fn statement(&self) -> Vec<u8> {
        [CONTEXT, &self.said()].concat()
    }

    /// The bytes that are sealed.
    pub(crate) fn said(&self) -> Vec<u8> {
        [&encoded(self)[..], &self.later].concat()
    }

    /// Whether its author says so, and it can be.
    pub(crate) fn is_good(&self, sealing: &Sealing) -> bool {
        let jobs = self.jobs.len() <= MAX_JOBS
            && self.jobs.iter().all(|(job, hosts)| is_job(job) && hosts.is_sound())
            && self.jobs.is_sorted_by(|(a, _), (b, _)| a < b);
        let fits = self.author.len() <= MAX_NAME_BYTES && self.seal.len() <= MAX_SEAL_BYTES;
        jobs && fits
            && self.cell.is_sound()
            && self.living.is_sound()
            && sealing.is_word(&self.author, &self.statement(), &self.seal)
    }

    /// Of two reports of one author the newer is the higher.
    pub(crate) fn age(&self) -> (u64, u64) {
        (self.generation, self.serial)
    }

    pub(crate) fn author_hash(&self) -> u64 {
        name_hash(&self.author)
    }

    pub(crate) fn id(&self) -> u128 {
        hash_of(&[b"report", &self.said(), self.seal.as_bytes()])
    }

    /// A number for what it says, the same in a report that its author has made anew: without its own number and
    /// the sums that change all the time.
    pub(crate) fn saying(&self) -> u64 {
        let sums = Sums { rows: 0, span_ns: None, ..self.sums.clone() };
        let said = encoded(&Self { serial: 0, sums, ..self.clone() });
        hash_of(&[b"saying", &said, &self.later]) as u64
    }
}
