//! Owns the list of an archive's contents: its stores, and the manifests of hours, read when they
//! are asked for and cached for the next question.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::hour::Hour;
use crate::layout::{self, StoreName};
use crate::manifest::{Manifest, StoreHours, VERSION};
use crate::place::{Content, Place, PlaceError};

/// Store files and manifests asked for at once.
const AT_ONCE: usize = 64;
/// Largest store file: it has a few numbers in it.
const STORE_BYTES: u64 = 64 << 10;
/// Largest manifest: they are a few KiB, with some thousand gaps some hundred.
const MANIFEST_BYTES: u64 = 1 << 20;
/// Bytes of the manifests of one table's time, and of those that are cached: beyond, the cache is
/// emptied.
const MOST_BYTES: usize = 256 << 20;

/// An archive that is read.
#[derive(Debug)]
pub struct Archive {
    place: Place,
    stores: BTreeMap<StoreName, StoreHours>,
    kept: Mutex<Kept>,
    /// The days that have hours, once they were listed: the first hour of each.
    days: Mutex<Option<Arc<BTreeSet<Hour>>>>,
}

/// Manifests that were read.
#[derive(Debug, Default)]
struct Kept {
    manifests: HashMap<(StoreName, Hour), Known>,
    /// Bytes of their files.
    bytes: usize,
}

impl Kept {
    fn add(&mut self, of: (StoreName, Hour), known: Known, bytes: usize, most: usize) {
        // An entry without a manifest has its key.
        let bytes = bytes + size_of::<(StoreName, Hour)>() + of.0.node.len();
        if self.bytes + bytes > most {
            *self = Self::default();
        }
        self.bytes += bytes;
        self.manifests.insert(of, known);
    }
}

/// An hour of a store: its manifest, none where there is none, or its error.
pub(crate) type Known = Result<Option<Arc<Manifest>>, Arc<str>>;

impl Archive {
    /// Lists the stores of which a place has hours.
    ///
    /// # Errors
    /// The place cannot be read, is empty, or was written by a later version.
    pub fn open(place: Place) -> Result<Self, PlaceError> {
        let wrong = |reason: String| PlaceError::failed(place.name(), reason);
        let now_ns = record::unix_now_ns();
        let found = place.files(layout::STORES)?;
        let named = |file: &String| StoreName::read(file, "json");
        let names: Vec<StoreName> = found.iter().filter_map(named).collect();
        if names.is_empty() {
            return Err(wrong("no archive is here: rankmesh archive, or rankmesh up --archive, writes one".to_owned()));
        }
        let mut stores = BTreeMap::new();
        for names in names.chunks(AT_ONCE) {
            let files: Vec<String> = names.iter().map(layout::store).collect();
            for ((name, file), content) in names.iter().zip(&files).zip(place.read_all(&files, STORE_BYTES)?) {
                let bytes = match content {
                    Content::None => continue,
                    Content::TooLong => return Err(wrong(format!("{file} is too large for what it is"))),
                    Content::Bytes(bytes) => bytes,
                };
                let store = serde_json::from_slice(&bytes)
                    .map_err(|error| wrong(format!("{file} is damaged: {error}")))
                    .and_then(|store| sound(store, name, now_ns).map_err(|why| wrong(format!("{file}: {why}"))))?;
                stores.insert(name.clone(), store);
            }
        }
        Ok(Self { place, stores, kept: Mutex::default(), days: Mutex::default() })
    }

    /// The stores, by node and number, with the hours that they may have.
    #[must_use]
    pub fn stores(&self) -> &BTreeMap<StoreName, StoreHours> {
        &self.stores
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// The manifests of hours, in order.
    ///
    /// # Errors
    /// The place cannot be read, or they take more memory than there is for them.
    pub(crate) fn manifests(&self, store: &StoreName, hours: &[Hour]) -> Result<Vec<Known>, PlaceError> {
        self.manifests_within(store, hours, MOST_BYTES)
    }

    fn manifests_within(&self, store: &StoreName, hours: &[Hour], most: usize) -> Result<Vec<Known>, PlaceError> {
        let (mut found, mut bytes) = (Vec::with_capacity(hours.len()), 0_usize);
        for some in hours.chunks(AT_ONCE) {
            let key = |hour: &Hour| (store.clone(), *hour);
            let mut now: HashMap<Hour, Known> = {
                let kept = self.kept.lock();
                some.iter().filter_map(|hour| Some((*hour, kept.manifests.get(&key(hour))?.clone()))).collect()
            };
            let missing: Vec<Hour> = some.iter().filter(|hour| !now.contains_key(hour)).copied().collect();
            let files: Vec<String> = missing.iter().map(|hour| layout::manifest(*hour, store)).collect();
            let read = self.place.read_all(&files, MANIFEST_BYTES)?;
            let mut kept = self.kept.lock();
            for ((hour, file), content) in missing.iter().zip(files).zip(read) {
                let length = if let Content::Bytes(bytes) = &content { bytes.len() } else { 0 };
                let known = match content {
                    Content::None => Ok(None),
                    Content::TooLong => Err(format!("{file} is too large for a manifest").into()),
                    Content::Bytes(bytes) => match Manifest::read(&bytes) {
                        Ok(manifest) => Ok(Some(Arc::new(manifest))),
                        Err(why) => Err(format!("{file}: {why}").into()),
                    },
                };
                kept.add((store.clone(), *hour), known.clone(), length, most);
                now.insert(*hour, known);
            }
            drop(kept);
            bytes += some.iter().filter_map(|hour| now.get(hour)).map(memory_bytes).sum::<usize>();
            if bytes > most {
                let reason = format!("the manifests of {store} take more than {most} bytes: ask for a shorter time");
                return Err(PlaceError::failed(self.place.name(), reason));
            }
            found.extend(some.iter().map(|hour| now.remove(hour).unwrap_or(Ok(None))));
        }
        Ok(found)
    }

    /// The days that have any hours, as the first hour of each.
    ///
    /// # Errors
    /// The place cannot be read.
    pub(crate) fn days(&self) -> Result<Arc<BTreeSet<Hour>>, PlaceError> {
        let mut days = self.days.lock();
        if let Some(days) = &*days {
            return Ok(Arc::clone(days));
        }
        let folders = self.place.folders(layout::MANIFESTS)?;
        let named = folders.iter().filter_map(|folder| Hour::read(folder.strip_prefix("date=")?, "00"));
        Ok(Arc::clone(days.insert(Arc::new(named.collect()))))
    }

    /// A manifest as it is now: the hour may have been written again.
    ///
    /// # Errors
    /// The place cannot be read.
    pub(crate) fn manifest_now(&self, store: &StoreName, hour: Hour) -> Result<Known, PlaceError> {
        self.kept.lock().manifests.remove(&(store.clone(), hour));
        Ok(self.manifests(store, &[hour])?.pop().unwrap_or(Ok(None)))
    }
}

/// What a store's file says, as far as it can be: nothing before 1970 (a host's clock may have said
/// so), nor after the hour that comes. Of these, days that are not listed cost nothing. The words in
/// it are dropped: there may be many such files.
///
/// # Errors
/// It is of another version.
fn sound(store: StoreHours, name: &StoreName, now_ns: i64) -> Result<StoreHours, String> {
    if store.version != VERSION {
        return Err(format!("version {}: use a newer rankmesh", store.version));
    }
    let last_ns = Hour::of_ns(now_ns).plus(1).range_ns().end;
    let (first_ns, until_ns) = (store.first_ns.clamp(0, last_ns), store.until_ns.clamp(0, last_ns));
    let node = name.node.clone();
    Ok(StoreHours { version: VERSION, node, store: String::new(), first_ns, until_ns, failed: None })
}

/// A manifest's memory, about.
fn memory_bytes(known: &Known) -> usize {
    let Ok(Some(manifest)) = known else { return size_of::<Known>() };
    let tables = manifest.tables.iter().map(|table| size_of_val(table) + table.table.len());
    let losses = manifest.losses.iter().map(|loss| size_of_val(loss) + loss.probe.len() + loss.reason.len());
    let dropped = manifest.dropped.iter().map(|dropped| size_of_val(dropped) + dropped.table.len());
    size_of::<Manifest>() + tables.chain(losses).chain(dropped).sum::<usize>() + size_of_val(manifest.gaps.as_slice())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Settings;

    fn name(node: &str) -> StoreName {
        StoreName { node: node.to_owned(), birth_ns: 1 }
    }

    /// An archive with this store file.
    fn archive(dir: &std::path::Path, first_ns: i64, until_ns: i64) -> Result<Archive, PlaceError> {
        let place = Place::open(dir.to_str().unwrap(), &Settings::default()).unwrap();
        let store = serde_json::json!({
            "version": 1, "node": "n1", "store": "1", "first_ns": first_ns, "until_ns": until_ns, "failed": "x".repeat(50_000),
        });
        place.write(&layout::store(&name("n1")), store.to_string()).unwrap();
        Archive::open(place)
    }

    #[test]
    fn a_store_that_claims_all_of_time_costs_little() {
        let dir = tempfile::tempdir().unwrap();
        for (first_ns, until_ns) in [(i64::MIN, i64::MAX), (0, i64::MAX), (i64::MIN, 1_700_000_000_000_000_000)] {
            let found = archive(dir.path(), first_ns, until_ns).unwrap();
            let known = &found.stores()[&name("n1")];
            assert!(known.first_ns == 0 && known.until_ns <= record::unix_now_ns() + 2 * crate::hour::HOUR_NS);
            assert!(found.days().unwrap().is_empty(), "no day is looked into that is not there");
        }
        // A clock that was ahead: what is yet to come is not looked for.
        let now_ns = record::unix_now_ns();
        let found = archive(dir.path(), now_ns, i64::MAX).unwrap();
        let known = &found.stores()[&name("n1")];
        assert!(known.until_ns <= now_ns + 2 * crate::hour::HOUR_NS && known.failed.is_none(), "{known:?}");
        let backwards = archive(dir.path(), i64::MAX, i64::MIN).unwrap();
        assert!(backwards.stores()[&name("n1")].until_ns == 0);
        // A store file is some hundred bytes.
        found.place().write(&layout::store(&name("n1")), vec![b' '; 70 << 10]).unwrap();
        assert!(Archive::open(found.place().clone()).unwrap_err().to_string().contains("too large"));
    }

    #[test]
    fn manifests_are_kept_by_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let now_ns = record::unix_now_ns();
        let archive = archive(dir.path(), now_ns, now_ns).unwrap();
        let first = Hour::of_ns(now_ns).plus(-200);
        let hours: Vec<Hour> = (0..200).map(|at| first.plus(at)).collect();
        for hour in &hours {
            let losses: Vec<_> = (0..100)
                .map(|_| serde_json::json!({ "probe": "p".repeat(80), "reason": "r", "since_ns": 0, "until_ns": 0, "lost": 1 }))
                .collect();
            let manifest = serde_json::json!({
                "version": 1, "node": "n1", "store": "1", "schema_version": 1, "rankmesh": "x", "since_ns": 0,
                "until_ns": 0, "written_ns": 0, "tables": [], "losses": losses, "gaps": [], "dropped": [],
            });
            archive.place().write(&layout::manifest(*hour, &name("n1")), manifest.to_string()).unwrap();
        }
        let most = 1 << 20;
        for some in hours.chunks(50) {
            let found = archive.manifests_within(&name("n1"), some, most).unwrap();
            assert!(found.iter().all(|known| matches!(known, Ok(Some(_)))));
            assert!(archive.kept.lock().bytes <= most);
        }
        assert!(archive.kept.lock().manifests.len() > 10, "they are kept");
        let error = archive.manifests_within(&name("n1"), &hours, most).unwrap_err().to_string();
        assert!(error.contains("shorter time"), "{error}");
        assert_eq!(archive.manifests(&name("n1"), &hours).unwrap().len(), 200);
        // One that is none is an error of its hour.
        archive.place().write(&layout::manifest(first, &name("n1")), vec![b' '; 2 << 20]).unwrap();
        let now = archive.manifest_now(&name("n1"), first).unwrap();
        assert!(now.is_err_and(|why| why.contains("too large")));
    }
}
