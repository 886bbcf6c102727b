//! The functions of numbers: those of CUDA and HIP have the index of their table, those that the
//! user asked for get theirs when they are found in a file.

use std::borrow::Cow;
use std::sync::Arc;

use crate::cuda::functions::{CudaFunction, FUNCTIONS};
use parking_lot::{Mutex, MutexGuard};

/// The user's symbols have numbers from here on.
pub(crate) const SYMBOLS_FROM: u16 = 512;
/// `RM_TALLY_FUNCS`.
pub(crate) const FUNCS: u16 = 2048;

/// A function, or a point, that the user asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SymbolInfo {
    /// The library's file name.
    pub(crate) library: String,
    /// As the user named it, completed: a symbol's demangled name, `PROVIDER:NAME` of a point.
    pub(crate) symbol: String,
    /// Its return value is wanted.
    pub(crate) with_ret: bool,
    /// A USDT point: it has no duration.
    pub(crate) point: bool,
}

/// A counted function.
#[derive(Debug, Clone)]
pub(crate) enum Counted {
    Cuda(&'static CudaFunction),
    Symbol(Arc<SymbolInfo>),
}

impl Counted {
    /// `call_rollups.source`.
    pub(crate) fn source(&self) -> &'static str {
        match self {
            Counted::Cuda(function) => function.api.source(),
            Counted::Symbol(_) => "symbol",
        }
    }

    /// `call_rollups.func`.
    pub(crate) fn func(&self) -> Cow<'static, str> {
        match self {
            Counted::Cuda(function) => function.name.into(),
            Counted::Symbol(info) => self::probe(&info.library, &info.symbol).into(),
        }
    }

    pub(crate) fn is_point(&self) -> bool {
        matches!(self, Counted::Symbol(info) if info.point)
    }

    /// "libcudart:cudaMalloc", "libgloo.so.0:gloo::allreduce(…)".
    pub(crate) fn probe(&self) -> String {
        match self {
            Counted::Cuda(function) => probe(function.api.library(), function.name),
            Counted::Symbol(info) => probe(&info.library, &info.symbol),
        }
    }
}

fn probe(library: &str, symbol: &str) -> String {
    format!("{library}:{symbol}")
}

/// The numbers given out.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    symbols: Mutex<Vec<Arc<SymbolInfo>>>,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<SymbolInfo>>> {
        self.symbols.lock()
    }

    /// The number of a symbol: the same for copies of a library. None when there are no more
    /// numbers.
    pub(crate) fn number(&self, info: SymbolInfo) -> Option<u16> {
        let mut symbols = self.lock();
        let at = symbols.iter().position(|known| **known == info).unwrap_or(symbols.len());
        let number = u16::try_from(at).ok()?.checked_add(SYMBOLS_FROM).filter(|number| *number < FUNCS)?;
        if at == symbols.len() {
            symbols.push(Arc::new(info));
        }
        Some(number)
    }

    /// The function of a number.
    pub(crate) fn counted(&self, number: u16) -> Option<Counted> {
        match number.checked_sub(SYMBOLS_FROM) {
            None => FUNCTIONS.get(usize::from(number)).map(Counted::Cuda),
            Some(at) => self.lock().get(usize::from(at)).map(|info| Counted::Symbol(Arc::clone(info))),
        }
    }

    /// All numbers in use.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        let symbols = self.lock().len() as u16;
        (0..FUNCTIONS.len() as u16).chain(SYMBOLS_FROM..SYMBOLS_FROM + symbols)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_library_share_a_number() {
        let registry = Registry::default();
        let info = |symbol: &str| SymbolInfo {
            library: "libx.so".into(),
            symbol: symbol.into(),
            with_ret: false,
            point: false,
        };
        assert_eq!(registry.number(info("f")), Some(SYMBOLS_FROM));
        assert_eq!(registry.number(info("g")), Some(SYMBOLS_FROM + 1));
        assert_eq!(registry.number(info("f")), Some(SYMBOLS_FROM));
        assert_eq!(registry.counted(SYMBOLS_FROM + 1).unwrap().probe(), "libx.so:g");
        assert_eq!(registry.counted(0).unwrap().probe(), "libcudart:cudaMalloc");
        assert!(registry.counted(SYMBOLS_FROM + 2).is_none() && registry.counted(SYMBOLS_FROM - 1).is_none());
        assert_eq!(registry.numbers().last(), Some(SYMBOLS_FROM + 1));
    }
}
