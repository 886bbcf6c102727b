//! Owns joining: the rows of several scans become one segment in memory, for whatever is asked of
//! them. A side's rows are found by a hash of what must be equal; where a column of theirs must lie
//! between bounds, they are also in its order.

use std::sync::Arc;

use query_planner::memory::Reservation;
use query_planner::scan::{
    Join, Joined, Keeps, OfMatches, Operand, Output, RowColumn, Scan, Side, SideColumn, SideRows,
};
use query_planner::{NodeError, Value};

use super::super::Kind;
use super::super::encode::{Encoded, Entries};
use super::super::segment::{InMemory, Segment};
use super::compute::{Vector, compute};
use super::gather::{Gathered, gather};
use super::narrow::{self, Before, Bounds, Narrowed};
use super::{Asked, Failure, Of, StepAside, Work, groups, with_work};

/// Joined rows beyond which SQLite does it, which need not keep them.
const MOST_ROWS: usize = 1 << 22;
/// Pairs that are looked at together.
const TOGETHER: usize = 8192;
/// Where there is no row.
const NONE: u32 = u32::MAX;

/// Rows in memory, column by column.
struct Table {
    rows: usize,
    columns: Vec<(String, Vector)>,
    /// Of texts, what their codes stand for: in ascending order.
    texts: Vec<Option<Arc<Entries>>>,
}

/// Joined rows.
pub(super) struct Rows {
    pub(super) segment: Segment,
    /// What was joined, in words.
    pub(super) description: String,
    /// Rows of all sides.
    pub(super) sides: u64,
    _reservation: Reservation,
}

/// Join; SQLite does it where that would be too much, or not of integers and texts alone.
pub(super) fn rows(asked: &Asked<'_>, joined: &Joined) -> Result<Rows, Failure> {
    let mut reservation = Reservation::default();
    let mut left = side(asked, &joined.first, &[])?;
    let mut description = format!("{} rows of {}", left.rows, name_of(&joined.first));
    let mut sides = left.rows as u64;
    for join in &joined.joins {
        if narrow::wants_nearest(left.before(), join) {
            description += &format!(" joined with the nearest of {}", name_of(&join.side));
            left = nearest(asked, left, join)?;
            continue;
        }
        let right = side(asked, &join.side, &narrow::narrowed(left.before(), join, None)?)?;
        description += &format!(" joined with {} of {}", right.rows, name_of(&join.side));
        sides += right.rows as u64;
        reserve(&mut reservation, &[&left, &right])?;
        left = step(asked, left, &right, join)?;
        reserve(&mut reservation, &[&left, &right])?;
    }
    Ok(Rows { segment: left.into_segment(), description, sides, _reservation: reservation })
}

/// Rows of a first side that are joined together, where it has many more.
const PIECE: usize = if cfg!(test) { 16 } else { 1 << 18 };

/// Join a long first side a piece at a time, and hand each piece's joined rows to `with`: what was
/// joined, in words, and the rows of all sides. None where the first side is not long, or no rows
/// of a table.
pub(super) fn in_pieces(
    asked: &Asked<'_>,
    joined: &Joined,
    with: &mut dyn FnMut(&Segment) -> Result<(), Failure>,
) -> Result<Option<(String, u64)>, Failure> {
    let SideRows::Scan(scan) = &joined.first.rows else { return Ok(None) };
    if scan.joined.is_some() || scan.windowed.is_some() || matches!(scan.output, Output::Groups(_)) {
        return Ok(None);
    }
    let is_long = with_work(asked, scan, Of::All, |work, _| {
        Ok(work.segments.iter().map(|segment| segment.rows).sum::<usize>() >= 2 * PIECE)
    })?;
    if !is_long {
        return Ok(None);
    }
    let mut reservation = Reservation::default();
    let rights: Vec<Table> = joined.joins.iter().map(|join| side(asked, &join.side, &[])).collect::<Result<_, _>>()?;
    reserve(&mut reservation, &rights.iter().collect::<Vec<_>>())?;
    let narrowed = narrow::of_first(joined, &rights.iter().map(Table::before).collect::<Vec<_>>())?;
    with_work(asked, scan, Of::In(&narrowed), |work, _| {
        let (mut rows, mut from) = (0, 0);
        while from < work.segments.len() {
            let mut to = from + 1;
            let mut together = work.segments[from].rows;
            while let Some(next) = work.segments.get(to).filter(|next| together + next.rows <= PIECE) {
                together += next.rows;
                to += 1;
            }
            let piece = Work { segments: &work.segments[from..to], ..*work };
            let mut left = table(&joined.first, gathered_rows(&piece, &joined.first, scan)?)?;
            rows += left.rows;
            let mut reservation = Reservation::default();
            for (join, right) in joined.joins.iter().zip(&rights) {
                left = step(asked, left, right, join)?;
                reserve(&mut reservation, &[&left])?;
            }
            with(&left.into_segment())?;
            from = to;
        }
        let names = joined.joins.iter().zip(&rights);
        let names = names.map(|(join, right)| format!(" joined with {} of {}", right.rows, name_of(&join.side)));
        let description = format!("{rows} rows of {}{}", name_of(&joined.first), names.collect::<String>());
        Ok(Some((description, rights.iter().map(|right| right.rows as u64).sum::<u64>() + rows as u64)))
    })
}

/// The columns of a side that is rows of a table.
fn gathered_rows(work: &Work<'_>, side: &Side, scan: &Scan) -> Result<Vec<Gathered>, Failure> {
    let Output::Rows(rows) = &scan.output else { return Err(Failure::StepAside) };
    let operand = |of: usize| match rows.columns.get(of) {
        Some(RowColumn::Value(operand)) => Ok(operand.clone()),
        _ => Err(StepAside),
    };
    let operands = side.columns.iter().map(|column| operand(column.of));
    let operands: Vec<Operand> = operands.collect::<Result<_, _>>()?;
    gather(work, &operands, &mut Reservation::default())
}

fn name_of(side: &Side) -> &str {
    match &side.rows {
        SideRows::Scan(scan) if scan.joined.is_some() => "a join",
        SideRows::Scan(scan) => &scan.table,
        SideRows::Sql(_) => "what SQLite gives",
    }
}

/// The rows of some tables are the question's memory. Where that is not enough SQLite, which need
/// not keep them, has the question to itself.
fn reserve(reservation: &mut Reservation, tables: &[&Table]) -> Result<(), StepAside> {
    let of = |table: &&Table| table.rows * (table.columns.len() + 2) * size_of::<i64>();
    if reservation.try_resize(tables.iter().map(of).sum()) { Ok(()) } else { Err(StepAside) }
}

fn in_memory(name: String, vector: Vector, texts: Option<Arc<Entries>>) -> InMemory {
    if let Some(entries) = texts {
        let null = entries.len() as i64;
        let mut codes = vector.values;
        codes.iter_mut().zip(&vector.nulls).filter(|(_, is_null)| **is_null).for_each(|(code, _)| *code = null);
        return InMemory { name, kind: Kind::Text, values: Encoded::codes(entries, codes), range: None };
    }
    let range = vector.range();
    InMemory { name, kind: Kind::Integer, values: Encoded::integers(vector.values, &vector.nulls), range }
}

/// How far above its bound a row looks first, and how many times as far each time that it found
/// nothing. (Of nanoseconds some milliseconds.)
const NEAR: i64 = if cfg!(test) { 8 } else { 1 << 22 };
const FARTHER: i64 = 16;
/// How often until it looks at all that is there.
const LOOKS: usize = 3;

/// As [`step`], where a row wants the least value above its bound: rows that find one near it are
/// done with that.
fn nearest(asked: &Asked<'_>, mut left: Table, join: &Join) -> Result<Table, Failure> {
    let Some((column, _)) = &join.value else { return Err(Failure::StepAside) };
    let bounds: Vec<Option<i64>> = {
        let bounds = Bounds::of(left.before(), join)?;
        (0..left.rows).map(|row| bounds.range(row).map(|(least, _)| least)).collect()
    };
    let mut found: Vec<Option<i64>> = vec![None; left.rows];
    let mut open: Vec<u32> = (0..left.rows as u32).filter(|row| bounds[*row as usize].is_some()).collect();
    let widths = std::iter::successors(Some(NEAR), |width| Some(width * FARTHER)).take(LOOKS);
    for width in widths.map(Some).chain([None]) {
        if open.is_empty() {
            break;
        }
        let some = left.at_rows(&open);
        let right = side(asked, &join.side, &narrow::narrowed(some.before(), join, width)?)?;
        let some = step(asked, some, &right, join)?;
        let (_, values) = some.columns.last().ok_or(StepAside)?;
        let mut at = 0;
        open.retain(|row| {
            at += 1;
            let bound = bounds[*row as usize].unwrap_or(i64::MAX);
            // What lies farther may have been read for another row, and not all that lies before
            // it.
            let is_near = |value: &i64| width.is_none_or(|width| *value <= bound.saturating_add(width));
            found[*row as usize] = values.at(at - 1).filter(is_near);
            found[*row as usize].is_none()
        });
    }
    left.columns.push((column.name.clone(), Vector::from_rows(left.rows, |row| found[row])));
    left.texts.push(None);
    Ok(left)
}

/// The rows of a side, of which only those that lie in ranges matter.
fn side(asked: &Asked<'_>, side: &Side, narrowed: &[Narrowed]) -> Result<Table, Failure> {
    let scan = match &side.rows {
        SideRows::Scan(scan) => scan,
        SideRows::Sql(sql) => return of_sql(asked, sql, side),
    };
    let gathered = with_work(asked, scan, Of::In(narrowed), |work, _| match &scan.output {
        Output::Rows(_) => gathered_rows(work, side, scan),
        Output::Groups(groups) => {
            let rows = groups::rows_of(work, groups, asked.node, asked.now_unix_ns)?;
            if side.columns.is_empty() {
                return Ok(vec![Gathered::rows(rows.len())]);
            }
            let column = |side: &SideColumn| {
                let values = rows.iter().map(|row| row.get(side.of).unwrap_or(&Value::Null));
                Gathered::of_values(values, side.column.is_real).ok_or(StepAside)
            };
            Ok(side.columns.iter().map(column).collect::<Result<_, _>>()?)
        }
    });
    let gathered = gathered.map_err(|failure| match failure {
        // Whether SQLite comes to what fails here is its own affair.
        Failure::Node(NodeError::Sql(_) | NodeError::OverBudget(_)) => Failure::StepAside,
        other => other,
    })?;
    table(side, gathered)
}

/// The rows of a side that SQLite works out.
fn of_sql(asked: &Asked<'_>, sql: &str, side: &Side) -> Result<Table, Failure> {
    let mut columns: Vec<Vec<Value>> = vec![Vec::new(); side.columns.len()];
    let (mut rows, mut reservation) = (0, Reservation::default());
    let mut read = || -> rusqlite::Result<bool> {
        let mut statement = asked.conn.prepare_cached(sql)?;
        let mut found = statement.raw_query();
        while let Some(row) = found.next()? {
            rows += 1;
            for (column, values) in side.columns.iter().zip(&mut columns) {
                values.push(Value::from_sqlite(row.get_ref(column.of)?));
            }
            let bytes = rows * (columns.len() * size_of::<Value>() + size_of::<i64>());
            if rows > MOST_ROWS || (rows.is_multiple_of(TOGETHER) && !reservation.try_resize(bytes)) {
                return Ok(false);
            }
        }
        Ok(true)
    };
    match read() {
        Ok(true) => {}
        Ok(false) => return Err(Failure::StepAside),
        // Whether SQLite comes to what fails here is its own affair, if time is not over.
        Err(error) => {
            return Err(match NodeError::of_sqlite(&error) {
                stopped @ NodeError::Stopped(_) => Failure::Node(stopped),
                _ => Failure::StepAside,
            });
        }
    }
    if columns.is_empty() {
        return table(side, vec![Gathered::rows(rows)]);
    }
    let column = |(side, values): (&SideColumn, &Vec<Value>)| {
        Gathered::of_values(values.iter(), side.column.is_real).ok_or(StepAside)
    };
    let gathered = side.columns.iter().zip(&columns).map(column).collect::<Result<_, _>>()?;
    table(side, gathered)
}

/// What was gathered for the columns of a side.
fn table(side: &Side, gathered: Vec<Gathered>) -> Result<Table, Failure> {
    let rows = gathered.first().map_or(0, Gathered::len);
    if rows > MOST_ROWS {
        return Err(Failure::StepAside);
    }
    let (mut columns, mut texts) = (Vec::new(), Vec::new());
    for (side, gathered) in side.columns.iter().zip(gathered) {
        let empty = || Arc::new(Entries::Texts(Vec::new()));
        texts.push(side.column.is_text.then(|| gathered.entries().cloned().unwrap_or_else(empty)));
        let is_empty = gathered.vector.nulls.iter().all(|is_null| *is_null) && !gathered.vector.nulls.is_empty();
        let is_text = gathered.entries().is_some();
        // (Of text that is only NULL there are no entries.)
        if is_text != side.column.is_text && !(side.column.is_text && (rows == 0 || is_empty)) {
            return Err(Failure::StepAside);
        }
        columns.push((side.column.name.clone(), gathered.vector));
    }
    Ok(Table { rows, columns, texts })
}

/// What rows are found by: a row's values, none where one is NULL.
struct Keys(Vec<Vector>);

impl Keys {
    fn is_null(&self, row: usize) -> bool {
        self.0.iter().any(|key| key.is_null(row))
    }

    fn hash(&self, row: usize) -> u64 {
        const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
        self.0.iter().fold(0_u64, |hash, key| {
            let value = key.values[row].cast_unsigned();
            (hash.rotate_left(23) ^ value ^ value >> 32).wrapping_mul(SPREAD)
        })
    }

    fn equal(&self, row: usize, other: &Self, other_row: usize) -> bool {
        self.0.iter().zip(&other.0).all(|(key, other)| key.values[row] == other.values[other_row])
    }
}

/// The rows of a side by hash.
enum Index {
    /// The first row of each slot, and for each row the next one of its slot; rows ascend.
    Chains { heads: Vec<u32>, next: Vec<u32>, shift: u32 },
    /// In order: hash, the value between bounds, row.
    Sorted(Vec<(u32, i64, u32)>),
}

impl Index {
    fn of(keys: &Keys, rows: usize, between: Option<&Vector>) -> Self {
        if let Some(between) = between {
            let value = |row: usize| between.at(row).filter(|_| !keys.is_null(row));
            let entry = |row: usize| Some(((keys.hash(row) >> 32) as u32, value(row)?, row as u32));
            let mut sorted: Vec<_> = (0..rows).filter_map(entry).collect();
            sorted.sort_unstable();
            return Self::Sorted(sorted);
        }
        let bits = (rows * 2).next_power_of_two().trailing_zeros().max(4);
        let (mut heads, mut next, shift) = (vec![NONE; 1 << bits], vec![NONE; rows], u64::BITS - bits);
        for row in (0..rows).rev().filter(|row| !keys.is_null(*row)) {
            let head = &mut heads[(keys.hash(row) >> shift) as usize];
            next[row] = std::mem::replace(head, row as u32);
        }
        Self::Chains { heads, next, shift }
    }

    /// Rows whose values may equal those of a row, and whose other value lies in a range, until
    /// `take` wants no more.
    fn candidates(&self, hash: u64, (least, greatest): (i64, i64), mut take: impl FnMut(u32) -> bool) {
        match self {
            Self::Chains { heads, next, shift } => {
                let mut row = heads[(hash >> shift) as usize];
                while row != NONE && take(row) {
                    row = next[row as usize];
                }
            }
            Self::Sorted(sorted) => {
                let hash = (hash >> 32) as u32;
                let from = sorted.partition_point(|(other, value, _)| (*other, *value) < (hash, least));
                let is_in = |(other, value, _): &&(u32, i64, u32)| *other == hash && *value <= greatest;
                for (.., row) in sorted[from..].iter().take_while(is_in) {
                    if !take(*row) {
                        return;
                    }
                }
            }
        }
    }
}

/// The rows that a join makes of those before and a side's.
fn step(asked: &Asked<'_>, left: Table, right: &Table, join: &Join) -> Result<Table, Failure> {
    let mut keys = (Keys(Vec::new()), Keys(Vec::new()));
    for (before, own) in &join.equal {
        keys.0.0.push(compute(before, &left.columns, left.rows)?.into_owned());
        keys.1.0.push(compute(own, &right.columns, right.rows)?.into_owned());
        if let (Some(theirs), Some(key)) = (left.texts_of(before)?, keys.1.0.last_mut()) {
            let own = right.texts_of(own)?.ok_or(StepAside)?;
            translate(key, &own, &theirs);
        }
    }
    let between = match join.bounds.first() {
        Some(bound) => Some(compute(&Operand::Column(bound.column.clone()), &right.columns, right.rows)?.into_owned()),
        None => None,
    };
    let index = Index::of(&keys.1, right.rows, between.as_ref());
    let bounds = Bounds::of(left.before(), join)?;
    // With a NULL among them nothing is certainly not among them.
    let is_open = join.keeps == Keeps::NotAmong && (0..right.rows).any(|row| keys.1.is_null(row));
    let is_first = match (&join.value, join.bounds.first()) {
        (Some((_, OfMatches::Exists)), _) => true,
        // Rows come in the order of the column between bounds, which has no NULL there.
        (Some((_, OfMatches::Least(Operand::Column(name)))), Some(bound)) => *name == bound.column,
        (Some(_), _) => false,
        (None, _) => !matches!(join.keeps, Keeps::Matching | Keeps::All),
    };
    let wants_one = is_first && join.residual.is_empty();
    let mut made_values: Vec<Option<i64>> = Vec::new();

    let (mut kept, mut pairs) = (Pairs::default(), Pairs::default());
    let (mut looked_at, mut looked_at_in_all) = (0_usize, 0_u64);
    let mut reservation = Reservation::default();
    let mut begin = 0;
    for row in 0..left.rows {
        let hash_of = |row: usize| keys.0.hash(row);
        if !keys.0.is_null(row)
            && let Some(range) = bounds.range(row)
        {
            index.candidates(hash_of(row), range, |other| {
                looked_at += 1;
                let is_it = keys.0.equal(row, &keys.1, other as usize);
                if is_it {
                    pairs.left.push(row as u32);
                    pairs.right.push(other);
                }
                !(is_it && wants_one) && pairs.left.len() <= MOST_ROWS
            });
            if pairs.left.len() > MOST_ROWS {
                return Err(Failure::StepAside);
            }
        }
        if pairs.left.len() >= TOGETHER || row + 1 == left.rows || looked_at >= TOGETHER * 64 {
            asked.go_on()?;
            looked_at_in_all += looked_at as u64;
            looked_at = 0;
            if looked_at_in_all > asked.most_rows {
                return Err(NodeError::Stopped("too many rows to look at on the spot".to_owned()).into());
            }
            if !join.residual.is_empty() {
                pairs.retain(&left, right, join)?;
            }
            if let Some((_, of)) = &join.value {
                pairs.fold(&left, right, of, begin..row + 1, &mut made_values)?;
            }
            let not_in = |row: usize| right.rows == 0 || (!is_open && !keys.0.is_null(row));
            kept.add(join.keeps, begin..row + 1, &pairs, not_in);
            pairs.clear();
            begin = row + 1;
            if kept.left.len() > MOST_ROWS || !reservation.try_resize(2 * size_of::<u32>() * kept.left.len()) {
                return Err(Failure::StepAside);
            }
        }
    }
    let mut table = made(left, right, join.keeps, &kept);
    if let Some((column, _)) = &join.value {
        table.columns.push((column.name.clone(), Vector::from_rows(table.rows, |row| made_values[row])));
        table.texts.push(None);
    }
    Ok(table)
}

/// Replace codes by those of the same texts among others (-1: none is).
fn translate(key: &mut Vector, from: &Entries, to: &Entries) {
    let (Entries::Texts(from), Entries::Texts(to)) = (from, to) else { return };
    let codes: Vec<i64> = from.iter().map(|text| to.binary_search(text).map_or(-1, |at| at as i64)).collect();
    for code in &mut key.values {
        *code = codes.get(*code as usize).copied().unwrap_or(-1);
    }
}

/// Rows that belong together.
#[derive(Default)]
struct Pairs {
    left: Vec<u32>,
    right: Vec<u32>,
}

impl Pairs {
    fn clear(&mut self) {
        self.left.clear();
        self.right.clear();
    }

    /// Keep those for which what remains to be asked holds.
    fn retain(&mut self, left: &Table, right: &Table, join: &Join) -> Result<(), Failure> {
        let columns = self.columns(left, right, join.residual.iter())?;
        let mut holds = vec![true; self.left.len()];
        for residual in &join.residual {
            let vector = compute(residual, &columns, self.left.len())?;
            holds.iter_mut().enumerate().for_each(|(at, holds)| *holds &= vector.is_true(at));
        }
        let keep = |rows: &mut Vec<u32>| {
            let mut holds = holds.iter();
            rows.retain(|_| holds.next() == Some(&true));
        };
        keep(&mut self.left);
        keep(&mut self.right);
        Ok(())
    }

    /// What operands need of the pairs.
    fn columns<'o>(
        &self,
        left: &Table,
        right: &Table,
        operands: impl Iterator<Item = &'o Operand>,
    ) -> Result<Vec<(String, Vector)>, StepAside> {
        let mut names: Vec<&str> = operands.flat_map(Operand::columns).collect();
        names.sort_unstable();
        names.dedup();
        let mut columns = Vec::with_capacity(names.len());
        for name in names {
            let of = |table: &Table, rows: &[u32]| {
                let (_, vector) = table.columns.iter().find(|(column, _)| column == name)?;
                Some(vector.at_rows(rows))
            };
            let vector = of(left, &self.left).or_else(|| of(right, &self.right)).ok_or(StepAside)?;
            columns.push((name.to_owned(), vector));
        }
        Ok(columns)
    }

    /// Add what is made of the pairs of each of the rows `of`, all of whose pairs are known.
    fn fold(
        &self,
        left: &Table,
        right: &Table,
        of: &OfMatches,
        rows: std::ops::Range<usize>,
        out: &mut Vec<Option<i64>>,
    ) -> Result<(), Failure> {
        let values = match of.operand() {
            Some(operand) => {
                let columns = self.columns(left, right, std::iter::once(operand))?;
                Some(compute(operand, &columns, self.left.len())?.into_owned())
            }
            None => None,
        };
        let mut at = 0;
        for row in rows {
            let from = at;
            at += self.left[at..].iter().take_while(|left| **left as usize == row).count();
            let known = || (from..at).filter_map(|pair| values.as_ref()?.at(pair));
            out.push(match of {
                OfMatches::Exists => Some(i64::from(at > from)),
                OfMatches::Count(None) => Some((at - from) as i64),
                OfMatches::Count(Some(_)) => Some(known().count() as i64),
                OfMatches::Least(_) => known().min(),
                OfMatches::Greatest(_) => known().max(),
            });
        }
        Ok(())
    }

    /// What becomes of the rows `of`, all of whose pairs are known.
    fn add(&mut self, keeps: Keeps, of: std::ops::Range<usize>, pairs: &Pairs, not_in: impl Fn(usize) -> bool) {
        if keeps == Keeps::Matching {
            self.left.extend_from_slice(&pairs.left);
            self.right.extend_from_slice(&pairs.right);
            return;
        }
        if keeps == Keeps::Value {
            self.left.extend(of.map(|row| row as u32));
            return;
        }
        let mut at = 0;
        for row in of {
            let from = at;
            at += pairs.left[at..].iter().take_while(|left| **left as usize == row).count();
            match keeps {
                Keeps::All if at > from => {
                    self.left.extend_from_slice(&pairs.left[from..at]);
                    self.right.extend_from_slice(&pairs.right[from..at]);
                }
                Keeps::All => {
                    self.left.push(row as u32);
                    self.right.push(NONE);
                }
                Keeps::WithMatch if at > from => self.left.push(row as u32),
                Keeps::WithoutMatch if at == from => self.left.push(row as u32),
                Keeps::NotAmong if at == from && not_in(row) => self.left.push(row as u32),
                _ => {}
            }
        }
    }
}

fn made(left: Table, right: &Table, keeps: Keeps, kept: &Pairs) -> Table {
    let is_same = kept.left.len() == left.rows && kept.left.iter().enumerate().all(|(at, row)| *row as usize == at);
    let mut texts = left.texts;
    let mut columns: Vec<(String, Vector)> = if is_same {
        left.columns
    } else {
        left.columns.into_iter().map(|(name, vector)| (name, vector.at_rows(&kept.left))).collect()
    };
    if matches!(keeps, Keeps::Matching | Keeps::All) {
        columns.extend(right.columns.iter().map(|(name, vector)| (name.clone(), vector.at_rows(&kept.right))));
        texts.extend(right.texts.iter().cloned());
    }
    Table { rows: kept.left.len(), columns, texts }
}

impl Table {
    fn into_segment(self) -> Segment {
        let of = |((name, vector), texts): ((String, Vector), Option<Arc<Entries>>)| in_memory(name, vector, texts);
        let columns = self.columns.into_iter().zip(self.texts).map(of).collect();
        Segment::in_memory(0, self.rows, columns)
    }

    fn before(&self) -> Before<'_> {
        Before { rows: self.rows, columns: &self.columns }
    }

    /// Some of the rows.
    fn at_rows(&self, rows: &[u32]) -> Self {
        let columns = self.columns.iter().map(|(name, vector)| (name.clone(), vector.at_rows(rows)));
        Self { rows: rows.len(), columns: columns.collect(), texts: self.texts.clone() }
    }

    /// The texts of an operand that is a column of text.
    fn texts_of(&self, operand: &Operand) -> Result<Option<Arc<Entries>>, StepAside> {
        let Operand::Column(name) = operand else { return Ok(None) };
        let at = self.columns.iter().position(|(column, _)| column == name).ok_or(StepAside)?;
        Ok(self.texts.get(at).cloned().flatten())
    }
}

impl Vector {
    /// Of some rows, in this order; NULL where there is no such row.
    fn at_rows(&self, rows: &[u32]) -> Self {
        let values = rows.iter().map(|row| self.values.get(*row as usize).copied().unwrap_or(0)).collect();
        let has_null = !self.nulls.is_empty() || rows.contains(&NONE);
        let is_null = |row: &u32| *row == NONE || self.is_null(*row as usize);
        Self { values, nulls: if has_null { rows.iter().map(is_null).collect() } else { Vec::new() } }
    }
}
