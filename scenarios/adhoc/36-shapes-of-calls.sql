-- Which kinds of calls are there at all?
-- ordered: yes
SELECT DISTINCT library, func, datatype, reduce_op, nranks FROM collectives ORDER BY 1, 2, 3, 4, 5
