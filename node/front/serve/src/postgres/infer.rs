//! Which type an expression has, by its tokens: so a parameter takes its type from where it stands,
//! as in PostgreSQL (<https://www.postgresql.org/docs/current/typeconv-oper.html>), and computed
//! columns are described before there are rows.
//!
//! SQLite compares a text with a number as two different kinds of values: a parameter that was sent
//! without a type must not become a text beside a number. Where nothing tells a type, nothing is
//! guessed.

mod functions;
mod labels;
mod operands;
mod scopes;

use std::cell::{Cell, OnceCell};

use super::tokens::{Kind, Token, closing, parts};
pub(super) use labels::labels;
pub(super) use scopes::Columns;
use scopes::Scopes;

/// The type of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inferred {
    Integer,
    /// A number that may be no integer.
    Real,
    Text,
    Blob,
}

impl Inferred {
    /// Whether it is a number.
    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Integer | Self::Real)
    }

    /// Its name in a CAST of SQLite.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Real => "REAL",
            Self::Text => "TEXT",
            Self::Blob => "BLOB",
        }
    }

    /// By the name of a type, SQLite's or PostgreSQL's.
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = name.to_ascii_uppercase();
        let has = |part: &str| name.contains(part);
        match () {
            () if has("INT") || name == "BOOL" || name == "BOOLEAN" || name == "OID" => Some(Self::Integer),
            () if has("CHAR") || has("CLOB") || has("TEXT") || name == "NAME" => Some(Self::Text),
            () if has("BLOB") || name == "BYTEA" => Some(Self::Blob),
            () if has("REAL") || has("FLOA") || has("DOUB") || has("NUMERIC") || has("DECIMAL") => Some(Self::Real),
            () => None,
        }
    }

    /// What both can be: an integer is also a real.
    fn both(self, other: Self) -> Option<Self> {
        match (self, other) {
            (a, b) if a == b => Some(a),
            (a, b) if a.is_number() && b.is_number() => Some(Self::Real),
            _ => None,
        }
    }
}

/// What a parameter is by all its places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parameter {
    Is(Inferred),
    /// No place tells.
    Unknown,
    /// One place wants a number, another a text.
    Differs,
}

/// Lists of results with more tokens, or expressions nested deeper than this, are not looked at: their
/// types are unknown.
const MOST_TOKENS: usize = 10_000;
const MOST_DEPTH: u32 = 100;
/// Tokens passed to tell the types of parameters: some tenths of a second. Those of the rest are
/// unknown, unless a CAST tells them.
const MOST_STEPS: usize = 100_000_000;
/// Looks into parts of a statement, beside those that each of its tokens may take. Names that stand
/// for expressions of names would take a number that doubles with each.
const MOST_LOOKS: usize = 1_000;
const LOOKS_A_TOKEN: usize = 8;

/// The types of the parameters `$1` to `$count`.
pub(super) fn parameters(tokens: &[Token], columns: &Columns, count: usize) -> Vec<Parameter> {
    let look = Look::new(tokens, columns);
    let mut found = vec![Parameter::Unknown; count];
    let mut looked = 0_usize;
    for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.kind == Kind::Param) {
        let number = token.text[1..].parse::<usize>().ok().and_then(|number| number.checked_sub(1));
        let Some(slot) = number.and_then(|number| found.get_mut(number)) else { continue };
        let here = look.cast(at).or_else(|| {
            looked = looked.saturating_add(tokens.len());
            if looked > MOST_STEPS { None } else { look.parameter(at) }
        });
        let Some(here) = here else { continue };
        *slot = match *slot {
            Parameter::Unknown => Parameter::Is(here),
            Parameter::Is(before) => before.both(here).map_or(Parameter::Differs, Parameter::Is),
            Parameter::Differs => Parameter::Differs,
        };
    }
    found
}

/// The type that the place of a text tells: PostgreSQL gives a literal its type as it does a
/// parameter.
pub(super) fn kind_at(tokens: &[Token], columns: &Columns, at: usize) -> Option<Inferred> {
    Look::new(tokens, columns).parameter(at)
}

/// Whether the column whose name ends with a token is one of numbers, of a table in the FROM of its
/// SELECT; not where that reads from another SELECT as well.
pub(super) fn column_at<'a>(tokens: &'a [Token], columns: &'a Columns) -> impl Fn(usize) -> bool + 'a {
    let scopes = Scopes::of(tokens);
    let name = |at: usize| Some(tokens.get(at)?.name()?.to_ascii_lowercase());
    move |at| {
        let table = at.checked_sub(2).filter(|_| tokens[at - 1].is(".")).and_then(name);
        let kind = name(at).and_then(|name| scopes.kind_here(columns, table.as_deref(), &name, at));
        kind.is_some_and(Inferred::is_number)
    }
}

/// Where the operand begins that ends before `end`; none where no value ends there.
pub(super) fn operand_before(tokens: &[Token], end: usize) -> Option<usize> {
    let columns = Columns::default();
    let look = Look::new(tokens, &columns);
    end.checked_sub(1).filter(|last| look.ends_value(*last)).and_then(|_| look.operand_before(end))
}

/// The types of a SELECT's columns; none of what cannot be told. None at all where its list has a
/// `*`, which stands for several.
pub(super) fn results(tokens: &[Token], columns: &Columns) -> Option<Vec<Option<Inferred>>> {
    if tokens.len() > MOST_TOKENS {
        return None;
    }
    Look::new(tokens, columns).results()
}

/// The names of a statement's columns, read from its list; for a statement that cannot be run.
pub(super) fn names(tokens: &[Token]) -> Vec<String> {
    // After WITH, the selected columns follow the last of its parentheses.
    let mut at = 0;
    while at < tokens.len() && !tokens[at].is("select") {
        at = if tokens[at].is("(") { closing(tokens, at).unwrap_or(at) + 1 } else { at + 1 };
    }
    at += 1;
    let mut all = Vec::new();
    let mut last: Option<&Token> = None;
    while at < tokens.len()
        && !["from", "where", "order", "limit", "union", "group"].iter().any(|word| tokens[at].is(word))
    {
        if tokens[at].is("(") {
            at = closing(tokens, at).unwrap_or(tokens.len());
        } else if tokens[at].is(",") {
            all.push(last.take());
        } else if matches!(tokens[at].kind, Kind::Word | Kind::Quoted) && !tokens[at].is("distinct") {
            last = Some(&tokens[at]);
        }
        at += 1;
    }
    all.push(last);
    all.into_iter().map(|token| token.and_then(Token::name).unwrap_or_else(|| "?column?".to_owned())).collect()
}

/// Operators with a number on each side.
const ARITHMETIC: &[&str] = &["+", "-", "*", "/", "%", "&", "|", "<<", ">>"];
/// Operators whose sides are of one type.
pub(super) const COMPARISONS: &[&str] = &["=", "==", "<", ">", "<=", ">=", "<>", "!="];
/// Operators with a text on each side.
const OF_TEXTS: &[&str] = &["||", "like", "ilike", "glob", "regexp", "match", "similar", "~", "~*", "!~", "!~*"];

struct Look<'a> {
    tokens: &'a [Token],
    columns: &'a Columns,
    /// Which tables are read where; looked for once a name is.
    scopes: OnceCell<Scopes>,
    depth: Cell<u32>,
    /// Looks that are left.
    left: Cell<usize>,
}

impl<'a> Look<'a> {
    fn new(tokens: &'a [Token], columns: &'a Columns) -> Self {
        let left = Cell::new(MOST_LOOKS + LOOKS_A_TOKEN * tokens.len());
        Self { tokens, columns, scopes: OnceCell::new(), depth: Cell::new(0), left }
    }

    /// Looks into a part of an expression; at nothing that is nested too deep, and not for ever.
    fn deeper<T>(&self, look: impl FnOnce() -> Option<T>) -> Option<T> {
        if self.depth.get() >= MOST_DEPTH {
            return None;
        }
        self.left.set(self.left.get().checked_sub(1)?);
        self.depth.set(self.depth.get() + 1);
        let found = look();
        self.depth.set(self.depth.get() - 1);
        found
    }

    /// Where the list of a SELECT begins and ends.
    fn list(&self) -> Option<(usize, usize)> {
        let begin = self.top_level(0, self.tokens.len(), |token| token.is("select"))? + 1;
        let begin = begin + usize::from(["distinct", "all"].iter().any(|word| self.is(begin, word)));
        let ends = ["from", "where", "group", "order", "limit", "union", "except", "intersect", "window", "having"];
        let end = self.top_level(begin, self.tokens.len(), |token| ends.iter().any(|word| token.is(word)));
        Some((begin, end.unwrap_or(self.tokens.len())))
    }

    /// Whether a part of the list is all columns of a table, or of all tables.
    fn is_star(&self, from: usize, to: usize) -> bool {
        to > from && self.is(to - 1, "*") && (to - from == 1 || self.is(to - 2, "."))
    }

    /// The types of the columns of a SELECT.
    fn results(&self) -> Option<Vec<Option<Inferred>>> {
        let (begin, end) = self.list()?;
        let mut all = Vec::new();
        for (from, to) in parts(self.tokens, begin, end) {
            if self.is_star(from, to) {
                return None;
            }
            all.push(self.expression(from, self.without_alias(from, to)));
        }
        Some(all)
    }

    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(text))
    }

    fn is_any(&self, at: usize, texts: &[&str]) -> bool {
        self.tokens.get(at).is_some_and(|token| texts.iter().any(|text| token.is(text)))
    }

    /// The first token outside of parentheses for which `wanted` holds.
    fn top_level(&self, from: usize, to: usize, wanted: impl Fn(&Token) -> bool) -> Option<usize> {
        let mut at = from;
        while at < to {
            let token = self.tokens.get(at)?;
            if wanted(token) {
                return Some(at);
            }
            at = if token.is("(") || token.is("[") { closing(self.tokens, at)? + 1 } else { at + 1 };
        }
        None
    }

    /// The end of a result column's expression, before `AS name` or a bare name.
    fn without_alias(&self, from: usize, to: usize) -> usize {
        if to >= from + 3 && self.is(to - 2, "as") {
            return to - 2;
        }
        let is_name =
            |at: usize| self.tokens.get(at).is_some_and(|token| matches!(token.kind, Kind::Word | Kind::Quoted));
        let is_alias = to >= from + 2 && is_name(to - 1) && !self.is(to - 1, "end") && self.ends_value(to - 2);
        if is_alias { to - 1 } else { to }
    }

    /// The type that a parameter is cast to: $1::type, CAST($1 AS type).
    fn cast(&self, at: usize) -> Option<Inferred> {
        let is_cast = at >= 2 && self.is(at - 1, "(") && self.is(at - 2, "cast") && self.is(at + 1, "as");
        (is_cast || self.is(at + 1, "::")).then(|| self.named_type(at + 2)).flatten()
    }

    /// What the place of a parameter says of it.
    fn parameter(&self, at: usize) -> Option<Inferred> {
        if let Some(kind) = self.cast(at) {
            return Some(kind);
        }
        // An array of values of a type that is told, or that stands beside it.
        if self.is(at + 1, "[") {
            return if self.is(at + 2, "]") { self.beside(at, at + 3) } else { self.named_type(at + 2) };
        }
        self.beside(at, at + 1)
    }

    fn named_type(&self, at: usize) -> Option<Inferred> {
        Inferred::named(&self.tokens.get(at)?.name()?)
    }

    /// What stands on both sides of the expression `from..to` wants it to be.
    fn beside(&self, from: usize, to: usize) -> Option<Inferred> {
        self.deeper(|| self.wanted_beside(from, to))
    }

    fn wanted_beside(&self, from: usize, to: usize) -> Option<Inferred> {
        let before = from.checked_sub(1)?;
        // A sign belongs to it.
        if self.is_any(before, &["-", "+"]) && before.checked_sub(1).is_none_or(|at| !self.ends_value(at)) {
            return Some(self.beside(before, to).filter(|kind| kind.is_number()).unwrap_or(Inferred::Real));
        }
        if self.is_any(before, OF_TEXTS)
            || self.is_any(to, OF_TEXTS)
            || (self.is(to, "not") && self.is_any(to + 1, OF_TEXTS))
        {
            return Some(Inferred::Text);
        }
        // A number as the other side is: an integer beside integers, whose division gives integers.
        if self.is_any(before, ARITHMETIC) {
            return Some(number_of(self.ending_at(before), Some(Inferred::Integer)));
        }
        if self.is_any(to, ARITHMETIC) {
            return Some(number_of(self.beginning_at(to + 1), Some(Inferred::Integer)));
        }
        if self.is_any(before, &["limit", "offset"]) {
            return Some(Inferred::Integer);
        }
        if self.is_any(before, COMPARISONS) {
            return self.ending_at(before);
        }
        if self.is_any(to, COMPARISONS) {
            return self.beginning_at(to + 1);
        }
        if self.is(before, "between") {
            return self.ending_before_not(before);
        }
        if self.is(before, "and")
            && let Some(between) = (0..before).rev().take(40).find(|at| self.is_any(*at, &["between", "and"]))
            && self.is(between, "between")
        {
            return self.ending_before_not(between);
        }
        if self.is_any(to, &["between"]) {
            return self.beginning_at(to + 1);
        }
        if self.is(before, "from") && before > 0 && self.is(before - 1, "distinct") {
            let is = (0..before).rev().take(4).find(|at| self.is(*at, "is"))?;
            return self.ending_at(is);
        }
        if self.is(to, "in") && self.is(to + 1, "(") {
            return self.beginning_at(to + 2);
        }
        // CASE … THEN $1
        if self.is_any(before, &["then", "else"]) {
            return self.branches(before);
        }
        // Among others: in a list, or the arguments of a function.
        if self.is_any(before, &["(", ","]) && self.is_any(to, &[")", ","]) && self.opened_before(from).is_some() {
            return self.among(from);
        }
        // Alone in parentheses, or in the list of a SELECT.
        let in_select = self.is_any(before, &["select", ",", "distinct", "all"]);
        let ends_item =
            to >= self.tokens.len() || self.is_any(to, &[",", "from", "as", ")", "union", "limit", "order", "where"]);
        let has_alias = self.tokens.get(to).is_some_and(|token| matches!(token.kind, Kind::Word | Kind::Quoted));
        (in_select && (ends_item || has_alias)).then_some(Inferred::Text)
    }

    /// The type of a value in a list or among arguments.
    fn among(&self, at: usize) -> Option<Inferred> {
        let open = self.opened_before(at)?;
        let close = closing(self.tokens, open)?;
        let before = open.checked_sub(1)?;
        if self.is(before, "in") {
            return self.ending_before_not(before);
        }
        if self.is(open + 1, "select") {
            return Some(Inferred::Text).filter(|_| self.is_any(at - 1, &["select", ","]));
        }
        // More parentheses around one value.
        if parts(self.tokens, open + 1, close).len() == 1 && !self.is_name_of_function(before) {
            return self.beside(open, close + 1);
        }
        let name = self.tokens[before].name()?.to_ascii_lowercase();
        let parts = parts(self.tokens, open + 1, close);
        let place = parts.iter().position(|&(from, to)| (from..to).contains(&at))?;
        match name.as_str() {
            "coalesce" | "ifnull" | "nullif" | "min" | "max" | "greatest" | "least" => {
                let others = parts.iter().enumerate().filter(|(other, _)| *other != place);
                let known = others.filter_map(|(_, &(from, to))| self.expression(from, to)).next();
                known.or_else(|| self.beside(before, close + 1))
            }
            "iif" if place > 0 => parts.iter().skip(1).filter_map(|&(from, to)| self.expression(from, to)).next(),
            "substr" | "substring" | "left" | "right" | "lag" | "lead" | "nth_value" if place > 0 => {
                Some(Inferred::Integer)
            }
            "round" if place == 1 => Some(Inferred::Integer),
            "round" | "abs" | "sqrt" | "exp" | "ln" | "log" | "pow" | "power" | "floor" | "ceil"
            | "approx_quantile" | "percentile" | "percentile_cont" | "percentile_disc" | "histogram" | "cluster_ns" => {
                Some(Inferred::Real)
            }
            "lower" | "upper" | "length" | "instr" | "trim" | "ltrim" | "rtrim" | "replace" | "substr"
            | "substring" | "strftime" | "date" | "time" | "datetime" | "julianday" | "like" | "glob" | "concat"
            | "concat_ws" | "json_extract" | "left" | "right" => Some(Inferred::Text),
            "unixepoch" => Some(Inferred::Text),
            _ => None,
        }
    }

    /// The type of the other branches of a CASE.
    fn branches(&self, at: usize) -> Option<Inferred> {
        let begin = (0..at).rev().find(|before| self.is(*before, "case"))?;
        let end = (at..self.tokens.len()).find(|after| self.is(*after, "end"))?;
        let branch = |&from: &usize| self.is_any(from, &["then", "else"]) && from != at;
        (begin..end).filter(branch).filter_map(|from| self.beginning_at(from + 1)).next()
    }

    /// The type of the expression before `NOT` or this keyword.
    fn ending_before_not(&self, at: usize) -> Option<Inferred> {
        self.ending_at(if at > 0 && self.is(at - 1, "not") { at - 1 } else { at })
    }

    /// The type of the expression that ends before `end`.
    fn ending_at(&self, end: usize) -> Option<Inferred> {
        self.deeper(|| self.type_before(end))
    }

    fn type_before(&self, end: usize) -> Option<Inferred> {
        let begin = self.operand_before(end)?;
        let operand = self.operand(begin, end);
        match begin.checked_sub(1) {
            Some(sign) if self.is(sign, "||") => Some(Inferred::Text),
            Some(sign) if self.is_any(sign, ARITHMETIC) => {
                let left = if sign > 0 && self.ends_value(sign - 1) { self.ending_at(sign) } else { operand };
                Some(self.of_arithmetic((left, sign.saturating_sub(1)), (operand, begin)))
            }
            _ => operand,
        }
    }

    /// The type of what arithmetic makes of two sides, with the places of what stands beside the
    /// operator: a parameter is as the other side is.
    fn of_arithmetic(&self, left: (Option<Inferred>, usize), right: (Option<Inferred>, usize)) -> Inferred {
        let or_as = |of: (Option<Inferred>, usize), other: Option<Inferred>| {
            let is_parameter = self.tokens.get(of.1).is_some_and(|token| token.kind == Kind::Param);
            of.0.or_else(|| other.filter(|_| is_parameter))
        };
        number_of(or_as(left, right.0), or_as(right, left.0))
    }

    /// The type of the expression that begins at `begin`.
    fn beginning_at(&self, begin: usize) -> Option<Inferred> {
        self.deeper(|| self.type_from(begin))
    }

    fn type_from(&self, begin: usize) -> Option<Inferred> {
        if self.is_any(begin, &["-", "+"]) {
            return self.beginning_at(begin + 1).filter(|kind| kind.is_number()).or(Some(Inferred::Real));
        }
        let end = self.operand_after(begin)?;
        let operand = self.operand(begin, end);
        if self.is(end, "||") {
            return Some(Inferred::Text);
        }
        if self.is_any(end, ARITHMETIC) {
            return Some(self.of_arithmetic((operand, end - 1), (self.beginning_at(end + 1), end + 1)));
        }
        operand
    }

    /// The type of the whole of `from..to`.
    fn expression(&self, from: usize, to: usize) -> Option<Inferred> {
        self.deeper(|| self.type_of(from, to))
    }

    fn type_of(&self, from: usize, to: usize) -> Option<Inferred> {
        if from >= to {
            return None;
        }
        let inside = |words: &'static [&'static str]| {
            self.top_level(from + 1, to, move |token| words.iter().any(|word| token.is(word)))
        };
        if self.is(from, "case") {
            return self.branches_of(from, to);
        }
        if self.is(from, "not")
            || inside(COMPARISONS).is_some()
            || inside(&["and", "or", "is", "in", "between", "like", "glob"]).is_some()
        {
            return Some(Inferred::Integer); // SQLite's truth
        }
        if inside(&["||"]).is_some() {
            return Some(Inferred::Text);
        }
        self.beginning_at(from)
    }

    fn branches_of(&self, from: usize, to: usize) -> Option<Inferred> {
        let starts = (from..to).filter(|at| self.is_any(*at, &["then", "else"]));
        let mut kinds = starts.filter_map(|at| self.beginning_at(at + 1));
        let first = kinds.next()?;
        kinds.try_fold(first, Inferred::both)
    }

    /// The type of one operand.
    fn operand(&self, begin: usize, end: usize) -> Option<Inferred> {
        let first = self.tokens.get(begin)?;
        if end >= begin + 3 && self.is(end - 2, "::") {
            return self.named_type(end - 1);
        }
        if self.is(begin, "case") {
            return self.branches_of(begin, end);
        }
        match first.kind {
            Kind::Number => {
                let is_real = first.text.contains(['.', 'e', 'E']) && !first.text.starts_with("0x");
                return Some(if is_real { Inferred::Real } else { Inferred::Integer });
            }
            Kind::Text => return Some(Inferred::Text),
            Kind::Param => return None,
            _ => {}
        }
        if first.is("(") {
            let close = closing(self.tokens, begin)?;
            if self.is_any(begin + 1, &["select", "with"]) {
                let (tokens, depth, left) = (&self.tokens[begin + 1..close], self.depth.clone(), self.left.clone());
                let inner = Look { tokens, columns: self.columns, scopes: OnceCell::new(), depth, left };
                let results = self.deeper(|| inner.results());
                self.left.set(self.left.get().min(inner.left.get()));
                return results?.first().copied().flatten();
            }
            return self.expression(begin + 1, close);
        }
        if let Some(open) = (begin..end).find(|at| self.is(*at, "(")) {
            let name = self.tokens.get(open.checked_sub(1)?)?.name()?.to_ascii_lowercase();
            return self.call(&name, open);
        }
        let at = end.checked_sub(1)?;
        let name_at = |at: usize| Some(self.tokens.get(at)?.name()?.to_ascii_lowercase());
        let (name, is_qualified) = (name_at(at)?, at >= begin + 2 && self.is(at - 1, "."));
        let table = if is_qualified { name_at(at - 2) } else { None };
        let scopes = self.scopes.get_or_init(|| Scopes::of(self.tokens));
        match scopes.kind(self.columns, table.as_deref(), &name, at) {
            Some(kind) => kind,
            None => self.alias(&name),
        }
    }

    fn call(&self, name: &str, open: usize) -> Option<Inferred> {
        let close = closing(self.tokens, open)?;
        if name == "cast" {
            let kind = self.top_level(open + 1, close, |token| token.is("as"))?;
            return self.named_type(kind + 1);
        }
        if let Some(kind) = functions::result_of(name) {
            return Some(kind);
        }
        let parts = parts(self.tokens, open + 1, close);
        if name == "iif" {
            return parts.iter().skip(1).filter_map(|&(from, to)| self.expression(from, to)).next();
        }
        if functions::OF_ARGUMENTS.contains(&name) {
            let parts = parts.iter().take(if ["lag", "lead", "nth_value"].contains(&name) { 1 } else { usize::MAX });
            let distinct = |from: usize| from + usize::from(self.is(from, "distinct"));
            return parts.filter_map(|&(from, to)| self.expression(distinct(from), to)).next();
        }
        None
    }

    /// The type of a name that a result column has: `count(*) AS n`, `count(*) n`.
    fn alias(&self, name: &str) -> Option<Inferred> {
        let is_it = |at: usize| self.tokens[at].name().is_some_and(|it| it.eq_ignore_ascii_case(name));
        let end = (1..self.tokens.len()).filter(|at| is_it(*at)).find_map(|at| {
            let bare = self.ends_value(at - 1) && self.is_any(at + 1, &[",", "from"]);
            if self.is(at - 1, "as") { Some(at - 1) } else { bare.then_some(at) }
        })?;
        let begin = self.operand_before(end)?;
        // (An expression that names itself would have no end.)
        if (begin..end).any(is_it) { None } else { self.ending_at(end) }
    }
}

/// The type of what arithmetic makes of two sides.
fn number_of(left: Option<Inferred>, right: Option<Inferred>) -> Inferred {
    match (left, right) {
        (Some(Inferred::Integer), Some(Inferred::Integer)) => Inferred::Integer,
        _ => Inferred::Real,
    }
}

#[cfg(test)]
mod tests;
