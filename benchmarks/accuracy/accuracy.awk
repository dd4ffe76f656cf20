# SPDX-License-Identifier: Apache-2.0
# The figures of accuracy's runs (--csv) as a table, as notes, or for its plot. -v format=table|notes|plot

# In percent of the native run with the same optimizer and seed.
function difference(column, key, seed, optimizer) {
    return 100 * (value[column, key, seed] / value[column, optimizer ",native", seed] - 1)
}

# Sets mean, largest (by size, with its sign), and count.
function compare(column, key, optimizer,    i, d) {
    mean = largest = count = 0
    for (i = 1; i <= seed_count; i++) {
        if (!((column, key, seeds[i]) in value) || !((column, optimizer ",native", seeds[i]) in value)) continue
        d = difference(column, key, seeds[i], optimizer)
        mean += d
        count++
        if (d * d > largest * largest) largest = d
    }
    if (count > 0) mean /= count
}

function average(column, key,    i, sum, count) {
    for (i = 1; i <= seed_count; i++) {
        if ((column, key, seeds[i]) in value) { sum += value[column, key, seeds[i]]; count++ }
    }
    return count > 0 ? sum / count : 0
}

function limit_of(optimizer, wire) {
    if (wire in limits) return limits[wire]
    return wire == "topk" && optimizer == "sgd" ? 2 : ""
}

function row(key,    part, limit, training, verdict) {
    split(key, part, ",")
    limit = limit_of(part[1], part[2])
    compare("loss", key, part[1])
    verdict = limit == "" ? "" : sprintf("%g: %s", limit, largest * largest <= limit * limit ? "yes" : "no")
    training = part[2] == "native" ? " | " : sprintf("%+.3f | %+.3f", mean, largest)
    printf "| %s | %s | %.4f | %s | %s |", part[1], part[2], average("loss", key), training, verdict
    compare("validation", key, part[1])
    training = part[2] == "native" ? " | " : sprintf("%+.3f | %+.3f", mean, largest)
    printf " %.4f | %s | %d | %.2f |\n", average("validation", key), training, average("bytes", key),
        average("bytes", part[1] ",native") / (average("bytes", key) + 1e-9)
}

function note(optimizer, column, name,    i, key, least, most, v) {
    key = optimizer ",native"
    for (i = 1; i <= seed_count; i++) {
        if (!((column, key, seeds[i]) in value)) continue
        v = value[column, key, seeds[i]]
        if (least == "" || v < least) least = v
        if (most == "" || v > most) most = v
    }
    if (least != "") {
        printf "native, %s, %s loss over the seeds: %.4f to %.4f, a spread of %.2f %%\n", optimizer, name, least, most,
            100 * (most - least) / least
    }
}

BEGIN {
    FS = ","
    limits["float16"] = limits["bfloat16"] = 0.1
    limits["int8"] = 0.5
    limits["float8"] = 1
}

NR == 1 { next }

{
    key = $1 "," $2
    if (!(key in known)) { known[key] = 1; keys[++key_count] = key }
    if (!($1 in optimizers)) { optimizers[$1] = 1; names[++optimizer_count] = $1 }
    if (!($3 in is_seed)) { is_seed[$3] = 1; seeds[++seed_count] = $3 }
    value["loss", key, $3] = $4
    value["validation", key, $3] = $5
    value["bytes", key, $3] = $6
}

END {
    if (format == "table") {
        print "| optimizer | wire | training loss | to native, %: mean | largest | wanted |" \
            " validation loss | to native, %: mean | largest | bytes a step | times fewer |"
        print "|---|---|---|---|---|---|---|---|---|---|---|"
        for (i = 1; i <= key_count; i++) row(keys[i])
    } else if (format == "notes") {
        for (i = 1; i <= optimizer_count; i++) {
            note(names[i], "loss", "training")
            note(names[i], "validation", "validation")
        }
    } else {
        # A line per wire and seed: number of the wire, name, size of the difference for each optimizer in turn.
        for (i = 1; i <= key_count; i++) {
            split(keys[i], part, ",")
            if (part[2] == "native" || (part[2] in drawn)) continue
            drawn[part[2]] = ++wire_count
            for (s = 1; s <= seed_count; s++) {
                printf "%d %s", wire_count, part[2]
                for (o = 1; o <= 2; o++) {
                    other = names[o] "," part[2]
                    if (("loss", other, seeds[s]) in value) {
                        d = difference("loss", other, seeds[s], names[o])
                        printf " %.6f", (d < 0 ? -d : d) + 1e-4 # its axis is logarithmic
                    } else {
                        printf " ?"
                    }
                }
                print ""
            }
        }
    }
}
