// Asks a server by node-postgres; says that it went well. usage: postgres.mjs URL
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.cwd()}/`);
const { Client, Pool } = require("pg");
const Cursor = require("pg-cursor");

const client = new Client({ connectionString: process.argv[2] });
await client.connect();
const ask = async (sql, values) => (await client.query(sql, values)).rows;

// It sends values as texts without types.
const ranks = "SELECT rank, count(*) AS n FROM collectives GROUP BY rank HAVING count(*) > $1 ORDER BY rank LIMIT $2";
assert.deepEqual(await ask(ranks, [0, 2]), [{ rank: "0", n: "100" }, { rank: "1", n: "100" }]);
assert.equal((await ask("SELECT count(*) AS n FROM collectives WHERE duration_ns / 1000 > $1", [0]))[0].n > 0, true);
const [{ first }] = await ask("SELECT min(ts_ns) AS first FROM collectives");
const began = new Date(Number(BigInt(first) / 1000000n));
assert.equal((await ask("SELECT count(*) AS n FROM collectives WHERE ts_ns >= $1", [began]))[0].n, "800");
assert.equal((await ask("SELECT count(*) AS n FROM collectives WHERE ts_ns < $1", [began]))[0].n, "0");
assert.equal((await ask("SELECT count(*) AS n FROM collectives WHERE rank = $1::int AND func ILIKE $2", [3, "ALL_%"]))[0].n, "100");
assert.equal((await ask("SELECT count(*) AS n FROM collectives WHERE ts_ns > now() - $1::interval", ["5 minutes"]))[0].n, "0");
assert.equal((await ask("SELECT (max(ts_ns) - $1) - max(ts_ns) AS x FROM collectives", ["1 second"]))[0].x, "-1000000000");
assert.deepEqual(await ask("SELECT $1::text AS a, $2::float8 AS b, $3::bool AS c", ["x", 1.5, true]), [{ a: "x", b: 1.5, c: "1" }]);
await assert.rejects(ask("SELECT 1 FROM collectives WHERE $1 IS NULL", [null]), (error) => error.code === "42P18");
await assert.rejects(ask("SELECT count(*) FROM collectives WHERE rank > $1", ["x"]), (error) => error.code === "22000");
assert.deepEqual(await ask("SELECT 1 AS still"), [{ still: "1" }]);

const cursor = client.query(new Cursor("SELECT seq FROM collectives WHERE rank = $1 ORDER BY seq", [0]));
assert.deepEqual((await cursor.read(2)).map((row) => row.seq), ["0", "1"]);
assert.equal((await cursor.read(1000)).length, 98);
await cursor.close();
await client.end();

const pool = new Pool({ connectionString: process.argv[2], max: 3 });
const all = await Promise.all(Array.from({ length: 12 }, (_, rank) => pool.query("SELECT count(*) AS n FROM collectives WHERE rank = $1", [rank])));
assert.deepEqual(all.map((found) => found.rows[0].n), [...Array(8).fill("100"), ...Array(4).fill("0")]);
await pool.end();
console.log("node-postgres");
