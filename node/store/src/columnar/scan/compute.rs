//! Owns working an operand out for many rows at once, by SQLite's rules for integers: NULL in, NULL
//! out; truth of three values; no result that would leave 64 bits (SQLite turns to doubles there,
//! or says that it overflows, and so does it all).

use std::borrow::Cow;
use std::cmp::Ordering;

use query_planner::scan::{Comparison, Operand};

use super::StepAside;

/// Integers of some rows, or codes of a dictionary, or the bits of doubles.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Vector {
    /// 0 where NULL.
    pub(super) values: Vec<i64>,
    /// Which are NULL; empty where none is.
    pub(super) nulls: Vec<bool>,
}

impl Vector {
    pub(super) fn same(value: Option<i64>, len: usize) -> Self {
        let nulls = if value.is_none() { vec![true; len] } else { Vec::new() };
        Self { values: vec![value.unwrap_or(0); len], nulls }
    }

    pub(super) fn is_null(&self, row: usize) -> bool {
        self.nulls.get(row).copied().unwrap_or(false)
    }

    pub(super) fn at(&self, row: usize) -> Option<i64> {
        self.values.get(row).copied().filter(|_| !self.is_null(row))
    }

    /// Of a vector of doubles, which has their bits.
    pub(super) fn real_at(&self, row: usize) -> Option<f64> {
        self.at(row).map(|bits| f64::from_bits(bits.cast_unsigned()))
    }

    /// Doubles as their bits.
    pub(super) fn of_reals(reals: &[Option<f64>]) -> Self {
        Self::from_rows(reals.len(), |row| reals[row].map(|value| value.to_bits().cast_signed()))
    }

    /// Whether a condition holds for a row.
    pub(super) fn is_true(&self, row: usize) -> bool {
        self.at(row).is_some_and(|value| value != 0)
    }

    /// The least and the greatest value.
    pub(super) fn range(&self) -> Option<(i64, i64)> {
        let widen = |range: Option<(i64, i64)>, value: i64| {
            Some(range.map_or((value, value), |(least, greatest)| (least.min(value), greatest.max(value))))
        };
        (0..self.values.len()).filter_map(|row| self.at(row)).fold(None, widen)
    }

    pub(super) fn from_rows(len: usize, mut row: impl FnMut(usize) -> Option<i64>) -> Self {
        let mut out = Self { values: Vec::with_capacity(len), nulls: Vec::new() };
        for at in 0..len {
            let value = row(at);
            if value.is_none() && out.nulls.is_empty() {
                out.nulls = vec![false; len];
            }
            if let (None, Some(null)) = (value, out.nulls.get_mut(at)) {
                *null = true;
            }
            out.values.push(value.unwrap_or(0));
        }
        out
    }
}

/// What `operand` is for each of `len` rows, of which `columns` has what it needs.
pub(super) fn compute<'v>(
    operand: &Operand,
    columns: &'v [(String, Vector)],
    len: usize,
) -> Result<Cow<'v, Vector>, StepAside> {
    let of = |operand: &Operand| compute(operand, columns, len);
    Ok(Cow::Owned(match operand {
        Operand::Column(name) => {
            let found = columns.iter().find(|(column, _)| column == name).ok_or(StepAside)?;
            return Ok(Cow::Borrowed(&found.1));
        }
        Operand::Integer(value) => Vector::same(Some(*value), len),
        Operand::Null => Vector::same(None, len),
        Operand::Real(_) | Operand::RealColumn(_) => return Err(StepAside),
        Operand::Arithmetic(a, operator, b) => {
            let (a, b) = (of(a)?, of(b)?);
            arithmetic(&a, *operator, &b)?
        }
        Operand::Compare(a, comparison, b) if a.is_real() || b.is_real() => {
            compare_numbers(&numbers(a, columns, len)?, *comparison, &numbers(b, columns, len)?)
        }
        Operand::Compare(a, comparison, b) => {
            let a = of(a)?;
            match &**b {
                Operand::Integer(b) if a.nulls.is_empty() => compare_with(&a, *comparison, *b),
                b => {
                    let b = of(b)?;
                    compare(&a, *comparison, &b)
                }
            }
        }
        Operand::Both(a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            if has_null([&*a, &*b]) {
                Vector::from_rows(len, |row| match (a.at(row), b.at(row)) {
                    (Some(0), _) | (_, Some(0)) => Some(0),
                    (a, b) => a.and(b).map(|_| 1),
                })
            } else {
                of_pairs(&a, &b, |a, b| i64::from(a != 0) & i64::from(b != 0))
            }
        }
        Operand::Either(a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            if has_null([&*a, &*b]) {
                Vector::from_rows(len, |row| {
                    if a.is_true(row) || b.is_true(row) { Some(1) } else { a.at(row).and(b.at(row)).map(|_| 0) }
                })
            } else {
                of_pairs(&a, &b, |a, b| i64::from(a | b != 0))
            }
        }
        Operand::Not(a) => {
            let a = of(a)?;
            let values = a.values.iter().enumerate();
            let not = values.map(|(row, value)| i64::from(*value == 0 && !a.is_null(row)));
            Vector { values: not.collect(), nulls: a.nulls.clone() }
        }
        Operand::Among(a, list) => {
            let a = of(a)?;
            Vector::from_rows(len, |row| a.at(row).map(|value| i64::from(list.binary_search(&value).is_ok())))
        }
        Operand::Case(arms, otherwise) => {
            let arms: Vec<_> =
                arms.iter().map(|(when, then)| Ok((of(when)?, of(then)?))).collect::<Result<_, StepAside>>()?;
            let otherwise = of(otherwise)?;
            if has_null(arms.iter().flat_map(|(when, then)| [when, then]).chain([&otherwise]).map(AsRef::as_ref)) {
                Vector::from_rows(len, |row| {
                    arms.iter().find(|(when, _)| when.is_true(row)).map_or(&otherwise, |(_, then)| then).at(row)
                })
            } else {
                // From the last arm on: an earlier one replaces what a later one chose.
                let mut chosen = otherwise.into_owned();
                for (when, then) in arms.iter().rev() {
                    for ((chosen, then), when) in chosen.values.iter_mut().zip(&then.values).zip(&when.values) {
                        *chosen = if *when != 0 { *then } else { *chosen };
                    }
                }
                chosen
            }
        }
        Operand::First(all) => {
            let all: Vec<_> = all.iter().map(of).collect::<Result<_, _>>()?;
            Vector::from_rows(len, |row| all.iter().find_map(|one| one.at(row)))
        }
        Operand::Extreme(is_greatest, all) => {
            let all: Vec<_> = all.iter().map(of).collect::<Result<_, _>>()?;
            Vector::from_rows(len, |row| {
                let mut found: Option<i64> = None;
                for one in &all {
                    let value = one.at(row)?;
                    found = Some(match found {
                        None => value,
                        Some(so_far) if *is_greatest => so_far.max(value),
                        Some(so_far) => so_far.min(value),
                    });
                }
                found
            })
        }
        Operand::Absolute(a) => {
            let a = of(a)?;
            if a.values.contains(&i64::MIN) {
                return Err(StepAside);
            }
            Vector { values: a.values.iter().map(|value| value.abs()).collect(), nulls: a.nulls.clone() }
        }
    }))
}

/// Whether a row of one of them is NULL. Without NULL there is a loop without branches.
fn has_null<'v>(vectors: impl IntoIterator<Item = &'v Vector>) -> bool {
    vectors.into_iter().any(|vector| !vector.nulls.is_empty())
}

/// What is made of two vectors without NULL.
fn of_pairs(a: &Vector, b: &Vector, with: impl Fn(i64, i64) -> i64) -> Vector {
    Vector { values: a.values.iter().zip(&b.values).map(|(a, b)| with(*a, *b)).collect(), nulls: Vec::new() }
}

/// Doubles of some rows, NULL where none.
pub(super) type Reals = Vec<Option<f64>>;

/// What `operand` is for each of `len` rows, as a double: by SQLite's rules, who makes NULL of what
/// is divided by 0 and of what is no number.
pub(super) fn reals(operand: &Operand, columns: &[(String, Vector)], len: usize) -> Result<Reals, StepAside> {
    let of = |operand: &Operand| reals(operand, columns, len);
    Ok(match operand {
        Operand::Real(value) => vec![Some(*value); len],
        Operand::RealColumn(name) => {
            let (_, bits) = columns.iter().find(|(column, _)| column == name).ok_or(StepAside)?;
            (0..len).map(|row| bits.real_at(row)).collect()
        }
        Operand::Arithmetic(a, operator, b) if operand.is_real() => {
            let with: fn(f64, f64) -> f64 = match operator {
                '+' => |a, b| a + b,
                '-' => |a, b| a - b,
                '*' => |a, b| a * b,
                '/' => |a, b| if b == 0.0 { f64::NAN } else { a / b },
                _ => return Err(StepAside),
            };
            let (mut a, b) = (of(a)?, of(b)?);
            for (a, b) in a.iter_mut().zip(b) {
                *a = a.zip(b).map(|(a, b)| with(a, b)).filter(|value| !value.is_nan());
            }
            a
        }
        Operand::Case(arms, otherwise) if operand.is_real() => {
            let arms: Vec<_> = arms
                .iter()
                .map(|(when, then)| Ok((compute(when, columns, len)?, of(then)?)))
                .collect::<Result<_, StepAside>>()?;
            let otherwise = of(otherwise)?;
            let of_row =
                |row: usize| arms.iter().find(|(when, _)| when.is_true(row)).map_or(&otherwise, |(_, then)| then)[row];
            (0..len).map(of_row).collect()
        }
        other => {
            let integers = compute(other, columns, len)?;
            (0..len).map(|row| integers.at(row).map(|value| value as f64)).collect()
        }
    })
}

/// A number of a row.
#[derive(Clone, Copy)]
enum Number {
    Integer(i64),
    Real(f64),
}

fn numbers(operand: &Operand, columns: &[(String, Vector)], len: usize) -> Result<Vec<Option<Number>>, StepAside> {
    if operand.is_real() {
        return Ok(reals(operand, columns, len)?.into_iter().map(|value| value.map(Number::Real)).collect());
    }
    let integers = compute(operand, columns, len)?;
    Ok((0..len).map(|row| integers.at(row).map(Number::Integer)).collect())
}

/// By SQLite's rules, who compares an integer with a double exactly.
fn order(a: Number, b: Number) -> Ordering {
    let of_both = |integer: i64, real: f64| {
        // 2^63 and -2^63 are doubles.
        let edge = -(i64::MIN as f64);
        if real >= edge {
            return Ordering::Less;
        }
        if real < -edge {
            return Ordering::Greater;
        }
        integer.cmp(&(real as i64)).then_with(|| {
            // (Where it has a fraction it is no larger than 2^53, and so is the integer.)
            (integer as f64).partial_cmp(&real).unwrap_or(Ordering::Equal)
        })
    };
    match (a, b) {
        (Number::Integer(a), Number::Integer(b)) => a.cmp(&b),
        (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
        (Number::Integer(a), Number::Real(b)) => of_both(a, b),
        (Number::Real(a), Number::Integer(b)) => of_both(b, a).reverse(),
    }
}

fn compare_numbers(a: &[Option<Number>], comparison: Comparison, b: &[Option<Number>]) -> Vector {
    let holds = |order: Ordering| match comparison {
        Comparison::Equal | Comparison::Is => order.is_eq(),
        Comparison::Unequal | Comparison::IsNot => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    };
    Vector::from_rows(a.len(), |row| match (a[row], b[row], comparison) {
        (Some(a), Some(b), _) => Some(i64::from(holds(order(a, b)))),
        (None, None, Comparison::Is) | (Some(_), None, Comparison::IsNot) | (None, Some(_), Comparison::IsNot) => {
            Some(1)
        }
        (_, _, Comparison::Is | Comparison::IsNot) => Some(0),
        _ => None,
    })
}

/// Which rows of two are NULL in one of them.
fn either_null(a: &Vector, b: &Vector) -> Vec<bool> {
    match (a.nulls.is_empty(), b.nulls.is_empty()) {
        (true, _) => b.nulls.clone(),
        (_, true) => a.nulls.clone(),
        _ => a.nulls.iter().zip(&b.nulls).map(|(a, b)| a | b).collect(),
    }
}

/// Without a branch in the loop; none when one overflows.
fn overflowing(a: &Vector, b: &Vector, operation: impl Fn(i64, i64) -> (i64, bool)) -> Option<Vec<i64>> {
    let mut has_overflowed = false;
    let values = a.values.iter().zip(&b.values);
    let values = values.map(|(a, b)| {
        let (value, is_over) = operation(*a, *b);
        has_overflowed |= is_over;
        value
    });
    let values = values.collect();
    (!has_overflowed).then_some(values)
}

fn arithmetic(a: &Vector, operator: char, b: &Vector) -> Result<Vector, StepAside> {
    let mut nulls = either_null(a, b);
    if matches!(operator, '/' | '%') && b.values.contains(&0) {
        nulls.resize(b.values.len(), false);
        nulls.iter_mut().zip(&b.values).for_each(|(null, divisor)| *null |= *divisor == 0);
    }
    let values = match operator {
        '+' => overflowing(a, b, i64::overflowing_add),
        '-' => overflowing(a, b, i64::overflowing_sub),
        '*' => overflowing(a, b, i64::overflowing_mul),
        '/' => overflowing(a, b, |a, b| if b == 0 { (0, false) } else { a.overflowing_div(b) }),
        '%' => overflowing(a, b, |a, b| (a.checked_rem(b).unwrap_or(0), false)),
        '&' => overflowing(a, b, |a, b| (a & b, false)),
        '|' => overflowing(a, b, |a, b| (a | b, false)),
        _ => None,
    };
    let mut values = values.ok_or(StepAside)?;
    values.iter_mut().zip(&nulls).filter(|(_, null)| **null).for_each(|(value, _)| *value = 0);
    Ok(Vector { values, nulls })
}

/// As [`compare`], of values without NULL with a constant.
fn compare_with(a: &Vector, comparison: Comparison, b: i64) -> Vector {
    fn with(a: &Vector, holds: impl Fn(i64) -> bool) -> Vector {
        Vector { values: a.values.iter().map(|a| i64::from(holds(*a))).collect(), nulls: Vec::new() }
    }
    match comparison {
        Comparison::Equal | Comparison::Is => with(a, |a| a == b),
        Comparison::Unequal | Comparison::IsNot => with(a, |a| a != b),
        Comparison::Less => with(a, |a| a < b),
        Comparison::LessOrEqual => with(a, |a| a <= b),
        Comparison::Greater => with(a, |a| a > b),
        Comparison::GreaterOrEqual => with(a, |a| a >= b),
    }
}

fn compare(a: &Vector, comparison: Comparison, b: &Vector) -> Vector {
    if matches!(comparison, Comparison::Is | Comparison::IsNot) {
        let is = comparison == Comparison::Is;
        return Vector::from_rows(a.values.len(), |row| Some(i64::from((a.at(row) == b.at(row)) == is)));
    }
    let nulls = either_null(a, b);
    let with = |holds: fn(&i64, &i64) -> bool| -> Vec<i64> {
        a.values.iter().zip(&b.values).map(|(a, b)| i64::from(holds(a, b))).collect()
    };
    let mut values = match comparison {
        Comparison::Equal | Comparison::Is => with(|a, b| a == b),
        Comparison::Unequal | Comparison::IsNot => with(|a, b| a != b),
        Comparison::Less => with(|a, b| a < b),
        Comparison::LessOrEqual => with(|a, b| a <= b),
        Comparison::Greater => with(|a, b| a > b),
        Comparison::GreaterOrEqual => with(|a, b| a >= b),
    };
    values.iter_mut().zip(&nulls).filter(|(_, null)| **null).for_each(|(value, _)| *value = 0);
    Vector { values, nulls }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Loops without branches, for values without NULL, give what the others give.
    #[test]
    fn values_without_null_are_worked_out_alike_both_ways() {
        let of = |times: i64, nulls: bool| {
            let values: Vec<i64> = (0..300).map(|row: i64| (row * times) % 7 - 3).collect();
            Vector { nulls: if nulls { vec![false; values.len()] } else { Vec::new() }, values }
        };
        let column = |name: &str| Box::new(Operand::Column(name.to_owned()));
        let all = [
            Comparison::Equal,
            Comparison::Unequal,
            Comparison::Less,
            Comparison::LessOrEqual,
            Comparison::Greater,
            Comparison::GreaterOrEqual,
            Comparison::Is,
            Comparison::IsNot,
        ];
        let mut operands: Vec<Operand> =
            all.map(|how| Operand::Compare(column("a"), how, Box::new(Operand::Integer(1)))).to_vec();
        operands.extend(all.map(|how| Operand::Compare(column("a"), how, column("b"))));
        operands.push(Operand::Both(column("a"), column("b")));
        operands.push(Operand::Either(column("a"), column("b")));
        operands.push(Operand::Not(column("a")));
        let arms = vec![(operands[2].clone(), *column("b")), (operands[11].clone(), Operand::Integer(40))];
        operands.push(Operand::Case(arms, column("a")));
        for operand in operands {
            let worked_out = |nulls: bool| {
                let columns = [("a".to_owned(), of(5, nulls)), ("b".to_owned(), of(3, nulls))];
                let made = compute(&operand, &columns, 300).ok().expect("integers").into_owned();
                (0..300).map(|row| made.at(row)).collect::<Vec<_>>()
            };
            assert_eq!(worked_out(false), worked_out(true), "{operand:?}");
        }
    }
}
