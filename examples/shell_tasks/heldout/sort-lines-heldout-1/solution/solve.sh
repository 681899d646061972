#!/bin/bash
cd /workspace || exit 1
sort invoice.txt > script.txt
