//! Owns the list of an archive's contents: its stores, and the manifests of hours, read when they
//! are asked for and cached for the next question.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::hour::Hour;
use crate::layout::{self, StoreName};
use crate::manifest::{Manifest, StoreHours, VERSION};
use crate::place::{Place, PlaceError};

/// Manifests asked for at once.
const AT_ONCE: usize = 256;
/// From this many hours on, the days that have any hours are listed first.
const DAYS_LISTED_FROM: usize = 24;
/// Manifests cached; beyond, the cache is emptied.
const MOST_KEPT: usize = 100_000;

/// An archive that is read.
#[derive(Debug)]
pub struct Archive {
    place: Place,
    stores: BTreeMap<StoreName, StoreHours>,
    kept: Mutex<HashMap<(StoreName, Hour), Known>>,
    /// The days that have hours, once they were listed.
    days: Mutex<Option<Arc<BTreeSet<String>>>>,
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
        let found = place.files(layout::STORES)?;
        let names: Vec<(StoreName, String)> = found
            .into_iter()
            .filter_map(|(file, _)| Some((StoreName::read(&file, "json")?, format!("{}/{file}", layout::STORES))))
            .collect();
        if names.is_empty() {
            return Err(wrong("no archive is here: rankmesh archive, or rankmesh up --archive, writes one".to_owned()));
        }
        let files: Vec<String> = names.iter().map(|(_, file)| file.clone()).collect();
        let mut stores = BTreeMap::new();
        for ((name, file), bytes) in names.into_iter().zip(place.read_all(&files)?) {
            let Some(bytes) = bytes else { continue };
            let store: StoreHours =
                serde_json::from_slice(&bytes).map_err(|error| wrong(format!("{file} is damaged: {error}")))?;
            if store.version != VERSION {
                return Err(wrong(format!("{file} has version {}: use a newer rankmesh", store.version)));
            }
            stores.insert(name, store);
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
    /// The place cannot be read.
    pub(crate) fn manifests(&self, store: &StoreName, hours: &[Hour]) -> Result<Vec<Known>, PlaceError> {
        let mut found = Vec::with_capacity(hours.len());
        // A store may not have been used for months: no requests are made for days without any
        // hour.
        let days = if hours.len() > DAYS_LISTED_FROM { Some(self.days()?) } else { None };
        for some in hours.chunks(AT_ONCE) {
            let key = |hour: &Hour| (store.clone(), *hour);
            let missing: Vec<Hour> = {
                let kept = self.kept.lock();
                let has_day = |hour: &Hour| days.as_ref().is_none_or(|days| days.contains(&hour.date_and_hour().0));
                some.iter().filter(|hour| has_day(hour) && !kept.contains_key(&key(hour))).copied().collect()
            };
            let files: Vec<String> = missing.iter().map(|hour| layout::manifest(*hour, store)).collect();
            let read = self.place.read_all(&files)?;
            let mut kept = self.kept.lock();
            if kept.len() + missing.len() > MOST_KEPT {
                kept.clear();
            }
            let mut now: HashMap<Hour, Known> = HashMap::new();
            for ((hour, file), bytes) in missing.iter().zip(files).zip(read) {
                let known = match bytes.map(|bytes| Manifest::read(&bytes)) {
                    None => Ok(None),
                    Some(Ok(manifest)) => Ok(Some(Arc::new(manifest))),
                    Some(Err(why)) => Err(format!("{file}: {why}").into()),
                };
                kept.insert((store.clone(), *hour), known.clone());
                now.insert(*hour, known);
            }
            let known = |hour: &Hour| now.get(hour).or_else(|| kept.get(&key(hour))).cloned().unwrap_or(Ok(None));
            found.extend(some.iter().map(known));
        }
        Ok(found)
    }

    fn days(&self) -> Result<Arc<BTreeSet<String>>, PlaceError> {
        let mut days = self.days.lock();
        if let Some(days) = &*days {
            return Ok(Arc::clone(days));
        }
        let folders = self.place.folders(layout::MANIFESTS)?;
        let named = folders.iter().filter_map(|folder| Some(folder.strip_prefix("date=")?.to_owned()));
        Ok(Arc::clone(days.insert(Arc::new(named.collect()))))
    }

    /// A manifest as it is now: the hour may have been written again.
    ///
    /// # Errors
    /// The place cannot be read.
    pub(crate) fn manifest_now(&self, store: &StoreName, hour: Hour) -> Result<Known, PlaceError> {
        self.kept.lock().remove(&(store.clone(), hour));
        Ok(self.manifests(store, &[hour])?.pop().unwrap_or(Ok(None)))
    }
}
