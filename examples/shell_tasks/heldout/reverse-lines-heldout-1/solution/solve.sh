#!/bin/bash
cd /workspace || exit 1
tac invoice.txt > postcard.txt
