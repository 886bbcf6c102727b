//! Random schemas, rows and SELECTs for `generated.rs`: everything from one seed, so that a failure
//! is one number.

/// A small generator of pseudo-random numbers (xorshift64*).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..4).for_each(|_| {
            dice.roll(2);
        });
        dice
    }

    pub(crate) fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        usize::try_from(self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33).expect("31 bits") % sides
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }

    pub(crate) fn pick<'a>(&mut self, items: &[&'a str]) -> &'a str {
        items[self.roll(items.len())]
    }
}

/// A generated data set: the schema, what replicated tables hold, and each node's rows.
pub(crate) struct Data {
    pub(crate) schema: String,
    pub(crate) nodes: Vec<String>,
}

const INTEGERS: &[&str] = &["NULL", "0", "1", "2", "3", "-1", "7", "100"];
const EXTREMES: &[&str] =
    &["9223372036854775807", "-9223372036854775808", "9223372036854775806", "4611686018427387904"];
const REALS: &[&str] = &["NULL", "0.5", "1.5", "-2.25", "1e10", "0.1", "0.2", "1.0", "-0.0", "3.0"];
const TEXTS: &[&str] =
    &["NULL", "''", "'a'", "'b'", "'abc'", "'z'", "'it''s'", "'1'", "'12abc'", "'x' || char(0) || 'y'", "'ü'"];
const VARIANTS: &[&str] = &["'A'", "'a '", "'B'", "'1.0'", "1.0", "1", "'ABC'"];
const BLOBS: &[&str] = &["x''", "x'61'", "x'00ff'"];

/// Rows for `nodes` stores. Mixed data has values that are equal but not the same (1 and 1.0, 'a'
/// and 'A').
pub(crate) fn data(dice: &mut Dice, nodes: usize, mixed: bool) -> Data {
    let collation = dice.pick(&["", " COLLATE NOCASE", " COLLATE RTRIM", " COLLATE BINARY"]);
    let loose = dice.pick(&["", "BLOB", "NUMERIC", "ANYTHING"]);
    let schema = format!(
        "CREATE TABLE t0(a INTEGER, b TEXT{collation}, c REAL, d {loose});
         CREATE TABLE t1(id INTEGER, a INT, x VARCHAR(8){collation}, y DOUBLE);
         CREATE TABLE r(k INTEGER, label TEXT);
         INSERT INTO r VALUES (0, 'zero'), (1, 'one'), (2, 'two'), (NULL, 'none');
         CREATE VIEW v0 AS SELECT a, b, a + 1 AS n, c FROM t0 WHERE a IS NOT NULL;
         CREATE VIEW v1 AS SELECT a, count(*) AS n FROM t0 GROUP BY a;"
    );
    let integer = |dice: &mut Dice| match dice.roll(30) {
        0 => dice.pick(EXTREMES),
        _ => dice.pick(INTEGERS),
    };
    let text = |dice: &mut Dice| if mixed && dice.chance(25) { dice.pick(VARIANTS) } else { dice.pick(TEXTS) };
    let any = |dice: &mut Dice| match dice.roll(4) {
        0 => dice.pick(INTEGERS),
        1 if mixed => dice.pick(REALS),
        2 => dice.pick(BLOBS),
        _ => text(dice),
    };
    let nodes = (0..nodes)
        .map(|_| {
            let mut sql = String::new();
            let most = [0, 1, 3, 8, 12][dice.roll(5)];
            for _ in 0..most {
                if dice.chance(80) {
                    sql.push_str(&format!(
                        "INSERT INTO t0(a, b, c, d) VALUES ({}, {}, {}, {});",
                        integer(dice),
                        text(dice),
                        dice.pick(REALS),
                        any(dice)
                    ));
                }
                if dice.chance(50) {
                    sql.push_str(&format!(
                        "INSERT INTO t1(id, a, x, y) VALUES ({}, {}, {}, {});",
                        dice.roll(20),
                        integer(dice),
                        text(dice),
                        dice.pick(REALS)
                    ));
                }
            }
            sql
        })
        .collect();
    Data { schema, nodes }
}

/// A query, and whether the order of its rows is fixed.
pub(crate) struct Sql {
    pub(crate) text: String,
    pub(crate) ordered: bool,
}

/// Something in FROM: its SQL and the columns that can be named.
struct Source {
    sql: String,
    columns: Vec<String>,
}

/// Generates queries.
pub(crate) struct Generator<'d> {
    pub(crate) dice: &'d mut Dice,
    pub(crate) mixed: bool,
    /// Whether the oracle has node columns.
    pub(crate) node: bool,
    aliases: usize,
}

impl<'d> Generator<'d> {
    pub(crate) fn new(dice: &'d mut Dice, mixed: bool, node: bool) -> Generator<'d> {
        Generator { dice, mixed, node, aliases: 0 }
    }

    pub(crate) fn query(&mut self) -> Sql {
        match self.dice.roll(20) {
            0..6 => self.rows(),
            6..13 => self.grouped(),
            13 => self.compound(),
            14 | 15 => self.with(),
            16 => self.windowed(),
            17 => self.driven(),
            _ => {
                if self.dice.chance(50) {
                    self.rows()
                } else {
                    self.grouped()
                }
            }
        }
    }

    fn alias(&mut self) -> String {
        self.aliases += 1;
        format!("q{}", self.aliases)
    }

    fn table(&mut self) -> Source {
        let (name, columns): (&str, &[&str]) = match self.dice.roll(12) {
            0..5 => ("t0", &["a", "b", "c", "d"]),
            5..8 => ("t1", &["id", "a", "x", "y"]),
            8 => ("r", &["k", "label"]),
            9 | 10 => ("v0", &["a", "b", "n", "c"]),
            _ => ("v1", &["a", "n"]),
        };
        let mut columns: Vec<&str> = columns.to_vec();
        if self.node && matches!(name, "t0" | "t1") {
            columns.push("node");
        }
        let alias = self.alias();
        let columns = columns.iter().map(|column| format!("{alias}.{column}")).collect();
        Source { sql: format!("{name} AS {alias}"), columns }
    }

    fn source(&mut self, depth: usize) -> Source {
        match self.dice.roll(20) {
            0..9 => self.table(),
            9 | 10 if depth > 0 => {
                let mut inner = self.source(0);
                let alias = self.alias();
                let filter = self.filter(&inner.columns, 0);
                let outputs: Vec<String> = inner
                    .columns
                    .iter()
                    .enumerate()
                    .map(|(i, column)| {
                        let column = if self.dice.chance(20) { format!("{column} || 'x'") } else { column.clone() };
                        format!("{column} AS s{i}")
                    })
                    .collect();
                inner.sql = format!("(SELECT {} FROM {}{filter}) AS {alias}", outputs.join(", "), inner.sql);
                inner.columns = (0..inner.columns.len()).map(|i| format!("{alias}.s{i}")).collect();
                inner
            }
            11 if depth > 0 => {
                let inner = self.source(0);
                let filter = self.filter(&inner.columns, 1);
                let (key, aggregate) = (self.column(&inner.columns), self.aggregate(&inner.columns));
                let alias = self.alias();
                Source {
                    sql: format!(
                        "(SELECT {key} AS s0, {aggregate} AS s1 FROM {}{filter} GROUP BY {key}) AS {alias}",
                        inner.sql
                    ),
                    columns: vec![format!("{alias}.s0"), format!("{alias}.s1")],
                }
            }
            _ => {
                let left = self.table();
                let right = if depth > 0 && self.dice.chance(20) { self.source(0) } else { self.table() };
                let mut columns = left.columns.clone();
                columns.extend(right.columns.iter().cloned());
                let l = left.columns[self.dice.roll(left.columns.len())].clone();
                let r = right.columns[self.dice.roll(right.columns.len())].clone();
                let nodes = |s: &Source| s.columns.iter().find(|c| c.ends_with(".node")).cloned();
                let mut on = format!("{l} = {r}");
                if let (Some(l), Some(r)) = (nodes(&left), nodes(&right))
                    && self.dice.chance(60)
                {
                    on = format!("{l} = {r} AND {on}");
                }
                if self.dice.chance(30) {
                    on = format!("{on} AND {}", self.predicate(&columns, 1));
                }
                let sql = match self.dice.roll(8) {
                    0..3 => format!("{} JOIN {} ON {on}", left.sql, right.sql),
                    3 | 4 => format!("{} LEFT JOIN {} ON {on}", left.sql, right.sql),
                    5 => format!("{} RIGHT JOIN {} ON {on}", left.sql, right.sql),
                    6 => format!("{} FULL JOIN {} ON {on}", left.sql, right.sql),
                    _ => format!("{}, {}", left.sql, right.sql),
                };
                Source { sql, columns }
            }
        }
    }

    fn filter(&mut self, columns: &[String], depth: usize) -> String {
        if self.dice.chance(60) {
            let mut filter = format!(" WHERE {}", self.predicate(columns, depth));
            if self.dice.chance(30) {
                filter.push_str(&format!(" AND {}", self.predicate(columns, depth)));
            }
            filter
        } else {
            String::new()
        }
    }

    fn literal(&mut self) -> String {
        match self.dice.roll(6) {
            0..3 => self.dice.pick(INTEGERS).to_owned(),
            3 => self.dice.pick(REALS).to_owned(),
            _ => self.dice.pick(&["'a'", "'b'", "''", "'1'", "'A'", "'n1'", "'abc'"]).to_owned(),
        }
    }

    fn column(&mut self, columns: &[String]) -> String {
        columns[self.dice.roll(columns.len())].clone()
    }

    fn expr(&mut self, columns: &[String], depth: usize) -> String {
        if depth == 0 || self.dice.chance(40) {
            return if self.dice.chance(80) { self.column(columns) } else { self.literal() };
        }
        let a = self.expr(columns, depth - 1);
        let b = self.expr(columns, depth - 1);
        match self.dice.roll(20) {
            0 | 1 => format!("{a} + {b}"),
            2 => format!("({a} - {b})"),
            3 => format!("({a}) * 2"),
            4 => format!("({a}) % 3"),
            5 => format!("({a}) / 2"),
            6 => format!("{a} || {b}"),
            7 => format!("coalesce({a}, {b})"),
            8 => format!("CASE WHEN {} THEN {a} ELSE {b} END", self.predicate(columns, depth - 1)),
            9 => format!("length({a})"),
            10 => format!("upper({a})"),
            11 => format!("nullif({a}, {b})"),
            12 => format!("CAST({a} AS {})", self.dice.pick(&["INTEGER", "TEXT", "REAL"])),
            13 => format!("-({a})"),
            14 => format!("+{a}"),
            15 => format!("substr({a}, 1, 2)"),
            16 => format!("ifnull({a}, {b})"),
            17 => format!("({})", self.predicate(columns, depth - 1)),
            18 => format!("{a} COLLATE {}", self.dice.pick(&["NOCASE", "BINARY", "RTRIM"])),
            _ => format!("hex({a})"),
        }
    }

    fn predicate(&mut self, columns: &[String], depth: usize) -> String {
        let a = self.expr(columns, depth.min(1));
        let b = self.expr(columns, depth.min(1));
        match self.dice.roll(18) {
            0..3 => format!("({a}) {} ({b})", self.dice.pick(&["=", "<", "<=", ">", ">=", "<>", "IS", "IS NOT"])),
            3..6 => {
                let column = self.column(columns);
                let operator = self.dice.pick(&["=", "<", "<=", ">", ">=", "<>", "IS"]);
                format!("{column} {operator} {}", self.literal())
            }
            6 => format!("({a}) IS NULL"),
            7 => format!("({a}) NOTNULL"),
            8 => format!("({a}) BETWEEN {} AND {}", self.literal(), self.literal()),
            9 => format!("({a}) {} ({}, {})", self.dice.pick(&["IN", "NOT IN"]), self.literal(), self.literal()),
            10 => format!("({a}) LIKE '{}'", self.dice.pick(&["a%", "%b%", "_", "A%"])),
            11 => format!("({a}) GLOB '{}'", self.dice.pick(&["a*", "*b*", "?"])),
            12 => format!("NOT ({})", self.predicate(columns, depth.saturating_sub(1))),
            13 => format!(
                "({} OR {})",
                self.predicate(columns, depth.saturating_sub(1)),
                self.predicate(columns, depth.saturating_sub(1))
            ),
            14 if self.node => match columns.iter().find(|column| column.ends_with(".node")).cloned() {
                Some(node) if self.dice.chance(50) => format!("{node} = 'n1'"),
                Some(node) => format!("{node} IN ('n0', 'n2', 'n9')"),
                None => format!("({a}) > ({b})"),
            },
            15 if depth > 0 => {
                let inner = self.table();
                let value = self.column(&inner.columns);
                let filter = self.filter(&inner.columns, 0);
                let not = self.dice.pick(&["IN", "NOT IN"]);
                format!("({a}) {not} (SELECT {value} FROM {}{filter})", inner.sql)
            }
            16 if depth > 0 => {
                let inner = self.table();
                let (mine, theirs) = (self.column(&inner.columns), self.column(columns));
                let not = self.dice.pick(&["EXISTS", "NOT EXISTS"]);
                let node = |columns: &[String]| columns.iter().find(|column| column.ends_with(".node")).cloned();
                if let (Some(inner_node), Some(outer_node)) = (node(&inner.columns), node(columns))
                    && self.dice.chance(60)
                {
                    let on = format!("{inner_node} = {outer_node} AND {mine} = {theirs}");
                    return match self.dice.roll(3) {
                        0 => format!("({a}) > (SELECT count(*) FROM {} WHERE {on})", inner.sql),
                        1 => {
                            format!("{theirs} IN (SELECT {mine} FROM {} WHERE {inner_node} = {outer_node})", inner.sql)
                        }
                        _ => format!("{not} (SELECT 1 FROM {} WHERE {on})", inner.sql),
                    };
                }
                format!("{not} (SELECT 1 FROM {} WHERE {mine} = {theirs})", inner.sql)
            }
            17 if depth > 0 => {
                let inner = self.table();
                let value = self.column(&inner.columns);
                let function = self.dice.pick(&["count", "min", "max"]);
                format!("({a}) > (SELECT {function}({value}) FROM {})", inner.sql)
            }
            _ => format!("({a}) = ({b})"),
        }
    }

    /// ORDER BY every result column, so that the rows' order is fixed up to equal rows; with LIMIT
    /// now and then.
    fn ending(&mut self, width: usize, ordered: &mut bool) -> String {
        *ordered = self.dice.chance(50);
        if !*ordered {
            return String::new();
        }
        let mut positions: Vec<usize> = (1..=width).collect();
        let turn = self.dice.roll(width);
        positions.rotate_left(turn);
        let terms: Vec<String> = positions
            .iter()
            .map(|at| format!("{at}{}", self.dice.pick(&["", " ASC", " DESC", " NULLS LAST", " DESC NULLS FIRST"])))
            .collect();
        let mut sql = format!(" ORDER BY {}", terms.join(", "));
        if self.dice.chance(50) {
            sql.push_str(&format!(" LIMIT {}", self.dice.pick(&["0", "1", "2", "3", "5", "100", "-1"])));
            if self.dice.chance(40) {
                sql.push_str(&format!(" OFFSET {}", self.dice.pick(&["0", "1", "2", "9"])));
            }
        }
        sql
    }

    fn rows(&mut self) -> Sql {
        let source = self.source(1);
        self.rows_from("", &source)
    }

    fn rows_from(&mut self, with: &str, source: &Source) -> Sql {
        let filter = self.filter(&source.columns, 2);
        // Equal but different values make DISTINCT's choice visible to operators.
        let distinct = self.dice.chance(25);
        let width = 1 + self.dice.roll(3);
        let depth = if distinct && self.mixed { 0 } else { 2 };
        let mut outputs: Vec<String> = (0..width).map(|_| self.expr(&source.columns, depth)).collect();
        let mut ordered = false;
        let ending = if !self.node && !distinct && self.dice.chance(15) {
            outputs = vec!["*".to_owned()];
            self.ending(source.columns.len(), &mut ordered)
        } else {
            self.ending(width, &mut ordered)
        };
        let distinct = if distinct { "DISTINCT " } else { "" };
        Sql {
            text: format!("{with}SELECT {distinct}{} FROM {}{filter}{ending}", outputs.join(", "), source.sql),
            ordered,
        }
    }

    fn aggregate(&mut self, columns: &[String]) -> String {
        let depth = if self.mixed { 0 } else { 1 };
        let value = self.expr(columns, depth);
        let value = value.as_str();
        let filter = if self.dice.chance(20) {
            format!(" FILTER (WHERE {})", self.predicate(columns, 0))
        } else {
            String::new()
        };
        let time = self.column(columns);
        match self.dice.roll(17) {
            // Equal values that differ (1 and 1.0) are a choice, and so is the row that a later
            // step sees of them.
            12 => format!("{}({value}){filter}", self.dice.pick(&["stddev", "var_pop", "approx_count_distinct"])),
            13 if !self.mixed => format!("{}({value}, {time}){filter}", self.dice.pick(&["first", "last"])),
            14 | 15 => {
                let call = self.dice.pick(&[
                    "median(#)",
                    "percentile(#, 90)",
                    "percentile_disc(#, 0.25)",
                    "mad(#)",
                    "approx_quantile(#, 0.5)",
                    "histogram(#, 6)",
                ]);
                // Numbers, and no infinite ones.
                let number = format!(
                    "CASE WHEN typeof({value}) IN ('integer', 'real') AND abs({value} + 0.0) < 1e300 THEN {value} END"
                );
                format!("{}{filter}", call.replace('#', &number))
            }
            0 | 1 => format!("count(*){filter}"),
            2 => format!("count({value}){filter}"),
            3 => format!("sum({value}){filter}"),
            4 => format!("total({value}){filter}"),
            5 => format!("avg({value}){filter}"),
            6 => format!("min({value}){filter}"),
            7 => format!("max({value}){filter}"),
            8 => format!("count(DISTINCT {value}){filter}"),
            9 if !self.mixed => format!("sum(DISTINCT {value}){filter}"),
            10 => format!("length(hex(group_concat({value}, '-'){filter}))"),
            _ => format!("count(*) + count({value}){filter}"),
        }
    }

    fn grouped(&mut self) -> Sql {
        let source = self.source(1);
        self.grouped_from("", &source)
    }

    fn grouped_from(&mut self, with: &str, source: &Source) -> Sql {
        let filter = self.filter(&source.columns, 2);
        let depth = if self.mixed { 0 } else { 2 };
        let keys: Vec<String> = (0..self.dice.roll(3)).map(|_| self.key(&source.columns, depth)).collect();
        let mut outputs: Vec<String> = keys.iter().filter(|_| self.dice.chance(80)).cloned().collect();
        for _ in 0..=self.dice.roll(3) {
            let aggregate = self.aggregate(&source.columns);
            outputs.push(aggregate);
        }
        if !self.mixed && self.dice.chance(20) {
            let (a, b) = (self.aggregate(&source.columns), self.aggregate(&source.columns));
            outputs.push(format!("coalesce({a}, 0) + {b}"));
        }
        let mut sql = format!("{with}SELECT {}", if self.dice.chance(10) { "DISTINCT " } else { "" });
        sql.push_str(&format!("{} FROM {}{filter}", outputs.join(", "), source.sql));
        if !keys.is_empty() {
            sql.push_str(&format!(" GROUP BY {}", keys.join(", ")));
        }
        if self.dice.chance(25) {
            let aggregate = self.aggregate(&source.columns);
            sql.push_str(&format!(" HAVING {aggregate} {} {}", self.dice.pick(&[">", "<", "IS NOT"]), self.literal()));
        }
        let mut ordered = false;
        sql.push_str(&self.ending(outputs.len(), &mut ordered));
        Sql { text: sql, ordered }
    }

    /// A grouping expression; never a bare number, which would be a position.
    fn key(&mut self, columns: &[String], depth: usize) -> String {
        let key = self.expr(columns, depth);
        if key.bytes().any(|b| b.is_ascii_alphabetic()) { key } else { self.column(columns) }
    }

    fn compound(&mut self) -> Sql {
        let mut sql = String::new();
        for i in 0..2 + self.dice.roll(2) {
            if i > 0 {
                sql.push_str(self.dice.pick(&[" UNION ", " UNION ALL ", " EXCEPT ", " INTERSECT "]));
            }
            let source = self.source(0);
            let filter = self.filter(&source.columns, 1);
            let (a, b) = (self.column(&source.columns), self.column(&source.columns));
            if self.dice.chance(40) {
                let b = self.aggregate(&source.columns);
                sql.push_str(&format!("SELECT {a}, {b} FROM {}{filter} GROUP BY {a}", source.sql));
            } else {
                sql.push_str(&format!("SELECT {a}, {b} FROM {}{filter}", source.sql));
            }
        }
        let mut ordered = false;
        sql.push_str(&self.ending(2, &mut ordered));
        Sql { text: sql, ordered }
    }

    /// A question over a common table expression: of rows or of groups, alone or joined.
    fn with(&mut self) -> Sql {
        let inner = self.source(0);
        let filter = self.filter(&inner.columns, 1);
        let alias = self.alias();
        let (body, width) = if self.dice.chance(20) {
            // Cut by an order over all columns, so that what is left is fixed.
            let (a, b) = (self.column(&inner.columns), self.column(&inner.columns));
            let limit = self.dice.pick(&["1", "2", "4"]);
            let distinct = self.dice.pick(&["", "DISTINCT "]);
            let e = if self.mixed { a.clone() } else { format!("{a} || 'e'") };
            (
                format!(
                    "SELECT {distinct}{e} AS s0, {b} AS s1 FROM {}{filter} ORDER BY 1 DESC, 2 LIMIT {limit}",
                    inner.sql
                ),
                2,
            )
        } else if self.dice.chance(60) {
            let outputs: Vec<String> =
                inner.columns.iter().enumerate().map(|(i, column)| format!("{column} AS s{i}")).collect();
            (format!("SELECT {} FROM {}{filter}", outputs.join(", "), inner.sql), outputs.len())
        } else {
            let (key, aggregate) = (self.column(&inner.columns), self.aggregate(&inner.columns));
            (format!("SELECT {key} AS s0, {aggregate} AS s1 FROM {}{filter} GROUP BY {key}", inner.sql), 2)
        };
        let mut source =
            Source { sql: format!("w AS {alias}"), columns: (0..width).map(|i| format!("{alias}.s{i}")).collect() };
        if self.dice.chance(40) {
            let right = self.table();
            let (l, r) = (self.column(&source.columns), self.column(&right.columns));
            let join = self.dice.pick(&["JOIN", "LEFT JOIN"]);
            let node = right.columns.iter().find(|column| column.ends_with(".node"));
            let on = match node {
                Some(node) => format!("{} = {node} AND {l} = {r}", source.columns[width - 1]),
                None => format!("{l} = {r}"),
            };
            source.sql = format!("{} {join} {} ON {on}", source.sql, right.sql);
            source.columns.extend(right.columns);
        }
        let with = format!("WITH w AS ({body}) ");
        if self.dice.chance(50) { self.rows_from(&with, &source) } else { self.grouped_from(&with, &source) }
    }

    /// A join on one column of each side, mostly of one kind, and a condition on one side: what may
    /// run in two rounds.
    fn driven(&mut self) -> Sql {
        let kinds: [&[&str]; 3] = [&["a", "id", "n"], &["b", "x"], &["c", "y"]];
        let kind = kinds[self.dice.roll(3)];
        let mut sides = [self.table(), self.table()];
        let mut keys = Vec::new();
        for side in &sides {
            let of_kind: Vec<String> = side
                .columns
                .iter()
                .filter(|column| column.rsplit('.').next().is_some_and(|name| kind.contains(&name)))
                .cloned()
                .collect();
            keys.push(self.column(if of_kind.is_empty() { &side.columns } else { &of_kind }));
        }
        let on = format!("{} {} {}", keys[0], self.dice.pick(&["=", "=", "=", "==", "IS"]), keys[1]);
        let (driver, depth) = (self.dice.roll(2), self.dice.roll(2));
        let own = self.predicate(&sides[driver].columns.clone(), depth);
        let [left, right] = &mut sides;
        let mut columns = left.columns.clone();
        columns.append(&mut right.columns);
        let (l, r) = (&left.sql, &right.sql);
        let mut sql = match self.dice.roll(8) {
            0 | 1 => format!("{l} JOIN {r} ON {on} WHERE {own}"),
            2 => format!("{l}, {r} WHERE {own} AND {on}"),
            3 | 4 => format!("{l} LEFT JOIN {r} ON {on} WHERE {own}"),
            5 => format!("{l} LEFT JOIN {r} ON {on} AND {own}"),
            6 => format!("{l} FULL JOIN {r} ON {on} WHERE {own}"),
            _ => format!("{l} JOIN {r} ON {on} AND ({own})"),
        };
        if sql.contains("WHERE") && self.dice.chance(20) {
            sql.push_str(&format!(" AND {}", self.predicate(&columns, 2)));
        }
        let (a, b) = (self.expr(&columns, 1), self.column(&columns));
        let text = if self.dice.chance(70) {
            format!("SELECT {a}, {b} FROM {sql}")
        } else {
            format!("SELECT count(*), count({b}) FROM {sql}")
        };
        Sql { text, ordered: false }
    }

    fn windowed(&mut self) -> Sql {
        let source = self.source(0);
        let filter = self.filter(&source.columns, 1);
        let (part, order, shown) =
            (self.column(&source.columns), self.column(&source.columns), self.column(&source.columns));
        let of_order = format!("stddev({order})");
        let latest = format!("last({shown}, {order})");
        let function = self.dice.pick(&["rank()", "dense_rank()", "count(*)", "percent_rank()", &of_order, &latest]);
        Sql {
            text: format!(
                "SELECT {shown}, {function} OVER (PARTITION BY {part} ORDER BY {order}) FROM {}{filter}",
                source.sql
            ),
            ordered: false,
        }
    }
}
