#!/bin/bash
cd /workspace || exit 1
echo tree house > menu.txt
