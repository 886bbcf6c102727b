//! Independent pieces of one analysis on several threads.

use std::num::NonZero;
use std::sync::Mutex;

/// What each item gives, in their order. With `many` on as many threads as may run at once (which
/// have the priority of the calling one), else on this one.
pub fn map<T: Send, R: Send>(items: Vec<T>, many: bool, each: impl Fn(T) -> R + Sync) -> Vec<R> {
    if !many {
        return items.into_iter().map(each).collect();
    }
    // Reads files of the caller's cgroup: too dear for each small piece.
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let left = Mutex::new(items.into_iter().enumerate());
    let work = || {
        let next = || left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
        let mut done = Vec::new();
        while let Some((at, item)) = next() {
            done.push((at, each(item)));
        }
        done
    };
    let mut done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_the_items() {
        let items: Vec<u32> = (0..1_000).collect();
        let twice: Vec<u32> = items.iter().map(|item| item * 2).collect();
        assert_eq!(map(items.clone(), true, |item| item * 2), twice);
        assert_eq!(map(items, false, |item| item * 2), twice);
        assert_eq!(map(Vec::new(), true, |item: u32| item), Vec::<u32>::new());
    }
}
