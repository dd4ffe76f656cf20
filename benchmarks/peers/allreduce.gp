# SPDX-License-Identifier: Apache-2.0
# gnuplot -e "data='FILE'; image='FILE.svg'; ranks='2'" allreduce.gp: what benchmarks/peers/allreduce --plot draws.

if (image[strlen(image) - 3 : ] eq ".png") {
    set terminal pngcairo size 900,560 font "sans,11"
} else {
    set terminal svg size 900,560 font "sans,13" background "white"
}
set output image
set title sprintf("All-reduce of float32 on one host, %s ranks", ranks)
set xlabel "bytes"
set ylabel "bus bandwidth, GB/s"
set logscale x 2
set logscale y 10
set format x "%.0b %BB"
set format y "%g"
set grid
set key outside top center horizontal
set style data linespoints
plot data using 1:2 title "limit of the memory" dashtype 2 linecolor "black" pointtype 0, \
     '' using 1:3 title "gradient in the library's bucket" linecolor "#009e73" linewidth 2, \
     '' using 1:4 title "private gradient" linecolor "#56b4e9", \
     '' using 1:5 title "private gradient, many tensors" linecolor "#0072b2", \
     '' using 1:6 title "best MPI" linecolor "#d55e00", \
     '' using 1:7 title "best gloo" linecolor "#888888"
