# SPDX-License-Identifier: Apache-2.0
# Sums up the CSV of benchmarks/peers/allreduce; format is table, plot or notes. In the order of the sizes' appearance.
#
# A run is one line of figures for each way. Ratios are taken within a run, and then their median over the runs.

function sort_of(list, out,    n, i, j, x) {
    n = split(list, out, " ")
    for (i = 2; i <= n; i++) {
        x = out[i] + 0
        for (j = i - 1; j > 0 && out[j] + 0 > x; j--) out[j + 1] = out[j]
        out[j + 1] = x
    }
    return n
}

function median(list,    v, n) {
    n = sort_of(list, v)
    if (n == 0) return ""
    return n % 2 ? v[(n + 1) / 2] + 0 : (v[n / 2] + v[n / 2 + 1]) / 2
}

# "4.31 (4.1 to 4.5)": the median and how far the runs are apart.
function with_range(list,    v, n) {
    n = sort_of(list, v)
    if (n == 0) return "-"
    return n == 1 ? ratio(v[1]) : ratio(median(list)) " (" ratio(v[1]) " to " ratio(v[n]) ")"
}

function ratio(x) {
    return x == "" ? "-" : sprintf(x < 10 ? "%.2f" : "%.0f", x)
}

function micro(x) {
    return x == "" ? "-" : sprintf(x < 100 ? "%.2f" : (x < 10000 ? "%.1f" : "%.0f"), x)
}

function bytes(x) {
    if (x >= 1048576 && x % 1048576 == 0) return x / 1048576 " MiB"
    return x >= 1024 && x % 1024 == 0 ? x / 1024 " KiB" : x " B"
}

function percent(size, name) {
    return calls[size, name] > 0 ? sprintf("%.1f", 100 * stalls[size, name] / calls[size, name]) : "-"
}

# The candidate whose time is the least multiple of the in-place way's; "" if none was measured.
function best(size, kind,    name, found, least, x) {
    for (name in kinds) {
        if (kinds[name] != kind) continue
        x = median(to_in[size, name])
        if (x != "" && (found == "" || x < least)) {
            found = name
            least = x
        }
    }
    return found
}

# The least multiple of the out-of-place way's time, of any candidate where that was measured.
function least_to_out(size, kind,    name, least, x) {
    for (name in kinds) {
        x = kinds[name] == kind ? median(to_out[size, name]) : ""
        if (x != "" && (least == "" || x < least)) least = x
    }
    return least
}

NR == 1 {
    FS = ","
    $0 = $0
    for (i = 1; i <= NF; i++) column[$i] = i
    next
}

# The way's name, made unique by the setting where there are several of it.
{
    size = $column["size"]
    way = $column["way"]
    setting = $column["setting"]
    run = $column["round"] SUBSEP setting SUBSEP size
    if (!(size in seen)) {
        seen[size] = 1
        sizes[++size_count] = size
    }
    if (!(run in runs)) {
        runs[run] = 1
        others = others " " $column["others_percent"]
    }
    name = way == "mpi" ? "mpi " setting : way
    # In the tensors run the bucket has many views: beside scattered only.
    if (setting == "tensors") name = "tensors " way
    if (way == "mpi") kinds[name] = "mpi"
    if (way ~ /^gloo/) kinds[name] = "gloo"
    time[run, way] = $column["time_us"]
    times[size, name] = times[size, name] " " $column["time_us"]
    stalls[size, name] += $column["stalls"]
    calls[size, name] += $column["iters"]
    wrong += $column["wrong"]
    lines[++line_count] = run SUBSEP way SUBSEP name
}

END {
    for (i = 1; i <= line_count; i++) {
        split(lines[i], part, SUBSEP)
        run = part[1] SUBSEP part[2] SUBSEP part[3]
        size = part[3]
        x = time[run, part[4]]
        at = size SUBSEP part[5]
        if (time[run, "in-place"] > 0) to_in[at] = to_in[at] " " x / time[run, "in-place"]
        if (time[run, "out-of-place"] > 0) to_out[at] = to_out[at] " " x / time[run, "out-of-place"]
    }
    if (format == "notes") write_notes()
    if (format == "table") write_table()
    if (format == "plot") write_plot()
}

function write_notes(    v, n) {
    n = sort_of(others, v)
    printf "processor time that other programs took: %.0f %% in the middle run, %.0f %% in the worst\n", median(others),
        v[n]
    print "wrong elements: " wrong + 0
}

function write_table(    i, size, mpi, gloo) {
    print "| size | in place, us | limit, us | share of the limit | private, us | scattered, us " \
        "| scattered / in place | best MPI, us | best MPI / in place | best MPI / private | default MPI / in place | best gloo, us " \
        "| gloo / in place | gloo / private | stalled calls, %: in place, private, limit, MPI, gloo |"
    print "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for (i = 1; i <= size_count; i++) {
        size = sizes[i]
        mpi = best(size, "mpi")
        gloo = best(size, "gloo")
        printf "| %s | %s | %s | %s | %s ", bytes(size), micro(median(times[size, "in-place"])),
            micro(median(times[size, "limit"])), ratio(median(to_in[size, "limit"])),
            micro(median(times[size, "out-of-place"]))
        printf "| %s | %s ", micro(median(times[size, "tensors scattered"])),
            ratio(median(to_in[size, "tensors scattered"]))
        printf "| %s | %s | %s | %s ", mpi == "" ? "-" : micro(median(times[size, mpi])) " (" substr(mpi, 5) ")",
            with_range(to_in[size, mpi]), ratio(least_to_out(size, "mpi")), ratio(median(to_in[size, "mpi default"]))
        printf "| %s | %s | %s ", gloo == "" ? "-" : micro(median(times[size, gloo])) " (" substr(gloo, 6) ")",
            ratio(median(to_in[size, gloo])), ratio(least_to_out(size, "gloo"))
        printf "| %s, %s, %s, %s, %s |\n", percent(size, "in-place"), percent(size, "out-of-place"),
            percent(size, "limit"), percent(size, mpi), percent(size, gloo)
    }
}

# busbw in GB/s, as allreduce_perf defines it; NaN is a gap.
function bandwidth(size, name,    x) {
    x = median(times[size, name])
    return x == "" ? "NaN" : size / x / 1000 * 2 * (ranks - 1) / ranks
}

function write_plot(    i, size) {
    for (i = 1; i <= size_count; i++) {
        size = sizes[i]
        print size, bandwidth(size, "limit"), bandwidth(size, "in-place"), bandwidth(size, "out-of-place"),
            bandwidth(size, "tensors scattered"), bandwidth(size, best(size, "mpi")), bandwidth(size, best(size, "gloo"))
    }
}
