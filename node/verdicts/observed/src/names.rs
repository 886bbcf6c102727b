//! Names that rows repeat: a node, a function, a library.

use std::collections::HashSet;
use std::sync::Arc;

/// Keeps each name once.
#[derive(Debug, Default)]
pub struct Names(HashSet<Arc<str>>);

impl Names {
    /// The kept name; what is no UTF-8 in it is replaced.
    pub fn keep(&mut self, name: &[u8]) -> Arc<str> {
        let name = String::from_utf8_lossy(name);
        if let Some(kept) = self.0.get(&*name) {
            return Arc::clone(kept);
        }
        let kept: Arc<str> = name.into();
        self.0.insert(Arc::clone(&kept));
        kept
    }
}
